// A process's own way into a segment: one-sided copies, writes and pinned views over shared memory.
// Maps tables read-only, data read-write and its own row read-write. Believes nothing it reads from
// the tables before it was checked against the mapping, and no byte before the slot's word was read
// again. Thread-safe; unusable in a forked child (SegmentClosed).
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "process_number.hpp"
#include "read_times.hpp"
#include "segment_file.hpp"
#include "segment_layout.hpp"
#include "status.hpp"

namespace moonpool {

// A byte count, or -1 - status: what Python's hot calls get back.
constexpr std::int64_t failure(Status status) { return -1 - static_cast<std::int64_t>(status); }

struct Pinned {
  Status status = Status::kInternal;
  std::uint32_t crc = 0;
  std::uint32_t pin = 0;  // to be given back by `unpin`
  const std::byte* data = nullptr;
  std::uint64_t size = 0;
};

class SegmentClient : public std::enable_shared_from_this<SegmentClient> {
 public:
  // Takes a free row of the segment at `path`, or behind `fd`. Throws SegmentFull without one,
  // SegmentFormat, std::system_error. `populate` faults the whole mapping in at once.
  static std::shared_ptr<SegmentClient> open(const std::string& path, bool populate = false);
  static std::shared_ptr<SegmentClient> open_fd(int fd, bool populate = false);
  ~SegmentClient();
  SegmentClient(const SegmentClient&) = delete;
  SegmentClient& operator=(const SegmentClient&) = delete;

  // Waits for calls under way; kBusy while pins are held.
  Status close();
  // False in a forked child.
  bool usable() const { return process_ == process_number(); }
  bool closed() const { return closed_.load(); }

  const Geometry& geometry() const { return geometry_; }
  std::uint32_t row() const { return row_; }
  std::uint64_t row_epoch() const { return row_epoch_; }
  // Disowns every claim made under the old epoch, known or lost on the way: the agent takes their
  // memory back. The caller must not be writing to any of them. Returns the new epoch.
  std::uint64_t renew_epoch();
  std::uint32_t pid() const { return pid_; }
  std::uint32_t pins() const;

  // Whole object into `to`; its size, or -1 - status. kBounds and nothing written when it does not
  // fit. After another failure the destination's content is undefined.
  std::int64_t read(std::uint32_t slot, std::uint64_t generation, std::byte* to,
                    std::size_t capacity, bool verify);
  // Exactly `bytes` bytes from `offset`; generation-checked, no CRC.
  Status read_range(std::uint32_t slot, std::uint64_t generation, std::uint64_t offset,
                    std::byte* to, std::size_t bytes);
  // Size of a sealed object, or -1 - status.
  std::int64_t size_of(std::uint32_t slot, std::uint64_t generation);

  // Into a slot this client claimed with its row (kRefused otherwise): whole object, with its CRC.
  Status write(std::uint32_t slot, std::uint64_t generation, const std::byte* from,
               std::size_t bytes, std::uint32_t& crc);
  Status write_range(std::uint32_t slot, std::uint64_t generation, std::uint64_t offset,
                     const std::byte* from, std::size_t bytes);
  // CRC of the bytes as they are, of a sealed object or one being written by ranges.
  Status checksum(std::uint32_t slot, std::uint64_t generation, std::uint32_t& crc);

  // Keeps a sealed object's memory from being returned until `unpin`, or until this process is
  // gone. kBounds when it lies in several extents (copy it instead), kBusy when all pins are taken.
  Pinned pin(std::uint32_t slot, std::uint64_t generation, bool verify);
  void unpin(std::uint32_t pin);

  // Of reads, by whoever calls them: a batch is one.
  ReadTimes& read_times() { return read_times_; }

 private:
  class Use;

  static std::shared_ptr<SegmentClient> attach(OwnedFd fd, const std::string& name, bool populate);
  SegmentClient(OwnedFd fd, const Geometry& geometry);
  void take_row();
  bool try_row(std::uint32_t row);
  const Slot* find(std::uint32_t slot, std::uint64_t word, Status& status) const;
  bool expired() const;
  std::uint32_t take_pin();
  void give_pin(std::uint32_t pin);
  template <class Copy>
  Status write_with(std::uint32_t slot, std::uint64_t generation, std::uint64_t offset,
                    std::uint64_t bytes, bool whole, Copy copy);

  OwnedFd fd_;
  Geometry geometry_;
  std::uint64_t process_;
  Mapping tables_, data_map_, row_map_;
  const Superblock* superblock_ = nullptr;
  const Slot* slots_ = nullptr;
  std::byte* data_ = nullptr;
  ClientRow* own_row_ = nullptr;
  std::uint32_t row_ = 0;
  std::uint32_t pid_ = 0;
  std::atomic<std::uint64_t> row_epoch_{0};
  std::atomic<std::uint32_t> uses_{0};
  std::atomic<bool> closed_{false};
  static constexpr std::uint32_t kPinWords = (kPinsPerRow + 63) / 64;
  std::array<std::atomic<std::uint64_t>, kPinWords> pins_taken_{};
  ReadTimes read_times_;
};

}  // namespace moonpool
