// Which bytes of a data area are free: best fit over size classes (two-level segregated, after
// TLSF), with immediate coalescing. The allocator lives in its owner's memory and never touches the
// area, so it can be rebuilt from the list of used extents and a broken client cannot damage it.
// Not thread-safe.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "flat_index.hpp"
#include "segment_layout.hpp"

namespace moonpool {

class ExtentAllocator {
 public:
  ExtentAllocator() { reset(0); }
  explicit ExtentAllocator(std::uint64_t bytes) { reset(bytes); }

  // Everything free again; `bytes` is rounded down to granules.
  void reset(std::uint64_t bytes);
  // Everything free except `used`. False, and everything free, when they overlap or leave the area.
  bool rebuild(std::uint64_t bytes, std::vector<Extent> used);

  // One extent of at least `bytes`, rounded up to granules.
  std::optional<Extent> allocate_one(std::uint64_t bytes);
  // The same, or else the largest free extent; nothing when nothing is free.
  std::optional<Extent> allocate_up_to(std::uint64_t bytes);
  // One extent when possible, else the largest free ones; false (nothing taken) when space or
  // `extents_max` does not suffice. Zero bytes take no extent.
  bool allocate(std::uint64_t bytes, std::size_t extents_max, std::vector<Extent>& out);
  // `extent` must have been allocated whole.
  void free(Extent extent);

  std::uint64_t total_bytes() const { return granules_ * kGranule; }
  std::uint64_t free_bytes() const { return free_granules_ * kGranule; }
  std::uint64_t largest_free() const;
  std::size_t free_blocks() const { return starts_.size(); }

 private:
  static constexpr std::uint32_t kSplit = 4;  // 16 classes per power of two
  static constexpr std::uint32_t kClasses = 1 << kSplit;
  static constexpr std::uint32_t kLevels = 60;
  static constexpr std::uint32_t kNone = 0xffffffffu;

  struct Block {
    std::uint64_t start;  // in granules
    std::uint64_t length;
    std::uint32_t prev, next;
  };
  struct Class {
    std::uint32_t level, index;
  };

  static Class class_of(std::uint64_t granules);
  std::uint32_t find_block(std::uint64_t granules) const;
  std::uint32_t largest_block() const;
  void add_block(std::uint64_t start, std::uint64_t length);
  Block take_block(std::uint32_t id);
  std::uint32_t block_at(const FlatIndex& index, std::uint64_t key, bool by_end) const;

  std::uint64_t granules_ = 0;
  std::uint64_t free_granules_ = 0;
  std::uint64_t levels_ = 0;
  std::array<std::uint32_t, kLevels> level_classes_{};
  std::array<std::array<std::uint32_t, kClasses>, kLevels> heads_{};
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> spare_;
  FlatIndex starts_, ends_;
};

}  // namespace moonpool
