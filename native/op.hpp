// One submitted transfer, as its caller sees it.
//
//   QUEUED -> POSTED -> one of DONE | FAILED | CANCELLED | EXPIRED
//
// QUEUED: not a byte has left. POSTED: the request is on its way. DONE: the peer answered, `status`
// says per block what became of it. The terminal states are final and quiet: from then on no thread
// touches the caller's memory. Who may touch it before:
//
//   memory of        QUEUED             POSTED                  terminal
//   a read           nobody             the connection's        the caller
//                                       reader, under its
//                                       receive lock
//   a write          submitter or I/O   submitter or I/O        the caller
//                    thread, under the connection's send lock
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "frame.hpp"
#include "socket_io.hpp"
#include "status.hpp"

namespace moonpool {

enum class OpState : std::uint8_t { kQueued, kPosted, kDone, kFailed, kCancelled, kExpired };

const char* name_of(OpState state);

// Ids of finished ops for asyncio: `fd` is an eventfd, readable while there are some.
class Completions {
 public:
  Completions();
  int fd() const { return fd_.get(); }
  void push(std::uint64_t id);
  std::vector<std::uint64_t> drain();

 private:
  Descriptor fd_;
  std::mutex mutex_;
  std::vector<std::uint64_t> ids_;
};

// One entry per block. Complete once the op is terminal.
struct OpResult {
  std::vector<std::uint8_t> status;
  std::vector<std::uint64_t> sizes;
  std::vector<std::uint32_t> crcs;
  std::vector<std::uint32_t> slots;
  std::vector<std::uint64_t> generations;
  std::vector<std::uint8_t> body;  // kDirectory: the directory
  std::string error;
};

class Op;

// Brings an op to its end from the thread that waits for it.
class OpDriver {
 public:
  virtual ~OpDriver() = default;
  // Returns when the op is terminal, at `until_ns`, or when somebody else takes care of it.
  virtual void drive(Op& op, std::int64_t until_ns) = 0;
};

class Op {
 public:
  struct Room {
    std::uint8_t* memory;
    std::uint64_t size;
  };

  Op(std::uint64_t id, wire::Type type, std::uint32_t count, std::int64_t deadline_ns)
      : id(id), type(type), count(count), deadline_ns(deadline_ns) {}

  // Blocks until terminal; false when `timeout_ms` pass first. Negative: until the op's own end,
  // which its deadline bounds.
  bool wait(std::int64_t timeout_ms);
  OpState state() const { return state_.load(std::memory_order_acquire); }
  bool terminal() const { return state() >= OpState::kDone; }
  const OpResult& result() const { return result_; }  // only when terminal

  // The id goes to `completions` when the op is terminal, at once if it already is.
  void notify(Completions& completions);

  void set_posted();
  // The first to end an op wins; false for the others. `fill` becomes the status of all blocks.
  bool finish(OpState state, Status fill, const std::string& error);
  bool finish(OpResult result);  // DONE

  const std::uint64_t id;
  const wire::Type type;
  const std::uint32_t count;
  const std::int64_t deadline_ns;
  std::vector<Room> rooms;         // reads: where block i goes
  bool checksum = true;            // reads: compare the CRC of what arrived
  std::weak_ptr<OpDriver> driver;  // set before the op is known to others
  bool sent = false;               // under the connection's send lock: the whole request has left
  bool shares_cpu = false;         // set before it is submitted: its wait stays on one CPU
  Descriptor shared_fd;            // kShareRegion: the descriptor received

 private:
  bool finish_with(OpState state, OpResult result);

  std::atomic<OpState> state_{OpState::kQueued};
  std::mutex mutex_;
  std::condition_variable ended_;
  Completions* completions_ = nullptr;
  OpResult result_;
};

}  // namespace moonpool
