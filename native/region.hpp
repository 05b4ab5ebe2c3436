// Memory that peers may read and write by (region, offset, length), and memory made to be shared
// with them by descriptor.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "socket_io.hpp"

namespace moonpool {

// A mapped memfd, sealed against growing and shrinking, fully allocated, so that lack of memory is
// an error here and never a SIGBUS later. Not inherited by fork or exec.
class SharedMemory {
 public:
  // Throws std::system_error when the memory cannot be had.
  static std::shared_ptr<SharedMemory> allocate(std::uint64_t size);
  // Maps what a peer sent; checks size and seals first.
  static std::shared_ptr<SharedMemory> map(Descriptor fd, std::uint64_t size, bool writable);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::uint8_t* memory() const { return memory_; }
  std::uint64_t size() const { return size_; }
  bool writable() const { return writable_; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(Descriptor fd, std::uint64_t size, bool writable);
  Descriptor fd_;
  std::uint8_t* memory_ = nullptr;
  std::uint64_t size_ = 0;
  bool writable_ = false;
  pid_t owner_;
};

struct Region {
  std::uint64_t id = 0;
  std::string name;
  std::uint8_t* memory = nullptr;
  std::uint64_t size = 0;
  bool writable = false;
  std::shared_ptr<SharedMemory> shared;  // null for memory that was only registered
};

class RegionTable {
 public:
  explicit RegionTable(std::size_t regions_max) : regions_max_(regions_max) {}
  // Throws std::length_error when the table is full.
  std::uint64_t add(Region region);
  bool remove(std::uint64_t id);
  std::optional<Region> find(std::uint64_t id) const;
  std::vector<Region> all() const;

 private:
  const std::size_t regions_max_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Region> regions_;
  std::uint64_t next_id_ = 1;
};

// Overflow-safe: does [offset, offset + length) lie within `size` bytes?
inline bool within(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
  return offset <= size && length <= size - offset;
}

}  // namespace moonpool
