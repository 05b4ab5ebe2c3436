// A segment's file as the operating system sees it: created, fully allocated, mapped and locked.
// Knows geometry and locks, never what a slot means. Objects of this file are unusable in a forked
// child: mappings are MADV_DONTFORK, descriptors are closed there, and `check_process` says so.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "segment_layout.hpp"

namespace moonpool {

// SegmentError
//   SegmentLocked   another living process owns the segment
//   SegmentFormat   no segment, an unfinished one, another version, truncated
//   SegmentSpace    the file system has not the bytes
//   SegmentFull     no client row is left
//   SegmentClosed   closed, or used in a forked child
struct SegmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct SegmentLocked : SegmentError {
  using SegmentError::SegmentError;
};
struct SegmentFormat : SegmentError {
  using SegmentError::SegmentError;
};
struct SegmentSpace : SegmentError {
  using SegmentError::SegmentError;
};
struct SegmentFull : SegmentError {
  using SegmentError::SegmentError;
};
struct SegmentClosed : SegmentError {
  using SegmentError::SegmentError;
};

// A descriptor that a forked child closes before it runs any code of its own.
class OwnedFd {
 public:
  OwnedFd() = default;
  // Opens by `open` (a descriptor, or -1 with errno) while no fork can come between.
  explicit OwnedFd(const std::function<int()>& open);
  ~OwnedFd();
  OwnedFd(OwnedFd&& other) noexcept;
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }

 private:
  void close();
  int fd_ = -1;
  std::uint64_t process_ = 0;
};

// One shared mapping, absent in forked children.
class Mapping {
 public:
  Mapping() = default;
  // Maps [offset, offset + bytes), both multiples of the file's page.
  Mapping(int fd, std::uint64_t offset, std::uint64_t bytes, bool writable);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }
  std::uint64_t size() const { return bytes_; }
  void advise_huge() const;
  // Faults all pages in; false when the kernel could not (too old, or no space).
  bool populate(bool writable) const;

 private:
  void unmap();
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t process_ = 0;
};

// OFD locks: they belong to the open file, so they end with its last descriptor, by close or by
// death.
bool lock_byte(int fd, std::uint64_t byte);  // false: somebody else holds it
void unlock_byte(int fd, std::uint64_t byte);
bool is_locked(int fd, std::uint64_t byte);  // by another open file than fd's

struct SegmentSpec {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t headroom_bytes = 0;
  std::uint32_t slots = 0;
  std::uint32_t rows = 64;
  std::uint32_t tombstones = 4096;
  std::string trust_domain;
  bool populate = true;
};

// Offsets and sizes for a spec; throws std::invalid_argument for impossible numbers.
Geometry plan_geometry(const SegmentSpec& spec, std::uint32_t page_bytes);

// Opens an existing segment file with a new open file description. Throws SegmentFormat,
// SegmentError.
OwnedFd open_segment(const std::string& path, bool writable);
OwnedFd reopen_segment(int fd);

// Creates `path` (or a memfd without one) of the geometry's size, every page allocated, owner lock
// taken.
struct CreatedFile {
  OwnedFd fd;
  Geometry geometry;
};
CreatedFile create_segment_file(const std::optional<std::string>& path, const SegmentSpec& spec);

// Reads and checks the geometry of an open file. Throws SegmentFormat.
Geometry read_geometry(int fd, std::string_view name);

// What can be said of a file without adopting it.
struct SegmentInfo {
  std::string problem;  // empty: a well-formed segment
  std::uint64_t file_bytes = 0;
  bool owner_alive = false;
  std::uint32_t owner_pid = 0;
  std::uint32_t clients_alive = 0;
  std::uint64_t term = 0;
  std::uint64_t valid_until_ns = 0;
  Geometry geometry{};
};
SegmentInfo inspect_segment(const std::string& path);
// Unlinks the file of a dead owner; false when its owner lives. Living clients keep their mapping.
bool remove_dead_segment(const std::string& path);

}  // namespace moonpool
