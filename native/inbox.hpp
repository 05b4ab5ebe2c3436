// Notifications that peers have sent and nobody has taken yet: bounded, in the order of their
// arrival. What a notification says is its sender's and its reader's business.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "socket_io.hpp"
#include "status.hpp"

namespace moonpool {

using NotificationBytes = std::vector<std::uint8_t>;

class Inbox {
 public:
  static constexpr std::size_t kBytesMax = 8 << 10;  // of one notification

  // Of 0 notifications none is taken in: nobody here would read them.
  explicit Inbox(std::size_t notifications_max);

  // kOk, kBusy when it is full, kRefused when nobody reads here.
  Status put(std::span<const std::uint8_t> bytes);
  // The oldest ones, at most `most`.
  std::vector<NotificationBytes> take(std::size_t most);
  // Readable while there is one, and for ever after close().
  int fd() const { return fd_.get(); }
  void close();

 private:
  void add_to_fd(std::uint64_t count);

  const std::size_t notifications_max_;
  Descriptor fd_;
  std::mutex mutex_;
  std::deque<NotificationBytes> waiting_;
  bool closed_ = false;
};

}  // namespace moonpool
