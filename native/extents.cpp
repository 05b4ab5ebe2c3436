#include "extents.hpp"

#include <algorithm>
#include <bit>

#include "mix.hpp"

namespace moonpool {

namespace {
constexpr int kLooksInOwnClass =
    32;  // blocks of the request's own class tried before a larger class

std::uint64_t to_granules(std::uint64_t bytes) {
  return bytes / kGranule + (bytes % kGranule != 0 ? 1 : 0);
}
}  // namespace

void ExtentAllocator::reset(std::uint64_t bytes) {
  granules_ = bytes / kGranule;
  free_granules_ = 0;
  levels_ = 0;
  level_classes_.fill(0);
  for (auto& level : heads_) level.fill(kNone);
  blocks_.clear();
  spare_.clear();
  starts_.clear();
  ends_.clear();
  if (granules_ > 0) add_block(0, granules_);
}

bool ExtentAllocator::rebuild(std::uint64_t bytes, std::vector<Extent> used) {
  reset(bytes);
  std::sort(used.begin(), used.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  std::uint64_t at = 0;
  for (const Extent& extent : used) {
    const bool aligned = extent.offset % kGranule == 0 && extent.bytes % kGranule == 0;
    const bool inside =
        extent.offset <= total_bytes() && extent.bytes <= total_bytes() - extent.offset;
    if (!aligned || !inside || extent.offset < at) return false;
    at = extent.offset + extent.bytes;
  }
  if (granules_ > 0) take_block(largest_block());
  at = 0;
  for (const Extent& extent : used) {
    if (extent.offset > at) add_block(at / kGranule, (extent.offset - at) / kGranule);
    at = extent.offset + extent.bytes;
  }
  if (at < total_bytes()) add_block(at / kGranule, granules_ - at / kGranule);
  return true;
}

std::optional<Extent> ExtentAllocator::allocate_one(std::uint64_t bytes) {
  const std::uint64_t wanted = to_granules(bytes);
  if (wanted == 0 || wanted > free_granules_) return std::nullopt;
  const std::uint32_t id = find_block(wanted);
  if (id == kNone) return std::nullopt;
  const Block block = take_block(id);
  if (block.length > wanted) add_block(block.start + wanted, block.length - wanted);
  return Extent{block.start * kGranule, wanted * kGranule};
}

std::optional<Extent> ExtentAllocator::allocate_up_to(std::uint64_t bytes) {
  if (std::optional<Extent> whole = allocate_one(bytes)) return whole;
  if (bytes == 0 || levels_ == 0) return std::nullopt;
  const Block block = take_block(largest_block());
  return Extent{block.start * kGranule, block.length * kGranule};
}

bool ExtentAllocator::allocate(std::uint64_t bytes, std::size_t extents_max,
                               std::vector<Extent>& out) {
  out.clear();
  std::uint64_t missing = to_granules(bytes);
  if (missing > free_granules_) return false;
  while (missing > 0 && out.size() < extents_max) {
    const std::optional<Extent> piece = allocate_up_to(missing * kGranule);
    missing -= piece->bytes / kGranule;
    out.push_back(*piece);
  }
  if (missing == 0) return true;
  for (const Extent& extent : out) free(extent);
  out.clear();
  return false;
}

void ExtentAllocator::free(Extent extent) {
  std::uint64_t start = extent.offset / kGranule;
  std::uint64_t length = extent.bytes / kGranule;
  if (const std::uint32_t before = block_at(ends_, start, true); before != kNone) {
    const Block block = take_block(before);
    start = block.start;
    length += block.length;
  }
  if (const std::uint32_t after = block_at(starts_, start + length, false); after != kNone) {
    length += take_block(after).length;
  }
  add_block(start, length);
}

std::uint64_t ExtentAllocator::largest_free() const {
  if (levels_ == 0) return 0;
  const std::uint32_t level = std::bit_width(levels_) - 1;
  const std::uint32_t index = std::bit_width(level_classes_[level]) - 1;
  std::uint64_t length = 0;
  for (std::uint32_t id = heads_[level][index]; id != kNone; id = blocks_[id].next) {
    length = std::max(length, blocks_[id].length);
  }
  return length * kGranule;
}

// Lengths below kClasses have a class each; above, a power of two is split into kClasses.
ExtentAllocator::Class ExtentAllocator::class_of(std::uint64_t granules) {
  if (granules < kClasses) return {0, static_cast<std::uint32_t>(granules)};
  const std::uint32_t width = std::bit_width(granules);
  const std::uint32_t level = width - kSplit;
  return {level, static_cast<std::uint32_t>(granules >> (width - 1 - kSplit)) & (kClasses - 1)};
}

std::uint32_t ExtentAllocator::find_block(std::uint64_t granules) const {
  const Class own = class_of(granules);
  std::uint32_t best = kNone;
  int looks = 0;
  for (std::uint32_t id = heads_[own.level][own.index]; id != kNone && looks < kLooksInOwnClass;
       id = blocks_[id].next, ++looks) {
    if (blocks_[id].length < granules) continue;
    if (best == kNone || blocks_[id].length < blocks_[best].length) best = id;
    if (blocks_[id].length == granules) break;
  }
  if (best != kNone) return best;
  // Every block of a higher class fits.
  std::uint32_t level = own.level;
  std::uint32_t classes =
      own.index + 1 < kClasses ? level_classes_[level] & (~0u << (own.index + 1)) : 0;
  if (classes == 0) {
    const std::uint64_t higher = levels_ & (~0ull << (level + 1));
    if (higher == 0) return kNone;
    level = std::countr_zero(higher);
    classes = level_classes_[level];
  }
  return heads_[level][std::countr_zero(classes)];
}

std::uint32_t ExtentAllocator::largest_block() const {
  const std::uint32_t level = std::bit_width(levels_) - 1;
  return heads_[level][std::bit_width(level_classes_[level]) - 1];
}

void ExtentAllocator::add_block(std::uint64_t start, std::uint64_t length) {
  const Class where = class_of(length);
  std::uint32_t& head = heads_[where.level][where.index];
  std::uint32_t id = static_cast<std::uint32_t>(blocks_.size());
  if (spare_.empty()) {
    blocks_.emplace_back();
  } else {
    id = spare_.back();
    spare_.pop_back();
  }
  blocks_[id] = {start, length, kNone, head};
  if (head != kNone) blocks_[head].prev = id;
  head = id;
  levels_ |= 1ull << where.level;
  level_classes_[where.level] |= 1u << where.index;
  starts_.insert(mix64(start), id);
  ends_.insert(mix64(start + length), id);
  free_granules_ += length;
}

ExtentAllocator::Block ExtentAllocator::take_block(std::uint32_t id) {
  const Block block = blocks_[id];
  const Class where = class_of(block.length);
  if (block.next != kNone) blocks_[block.next].prev = block.prev;
  if (block.prev != kNone) {
    blocks_[block.prev].next = block.next;
  } else {
    heads_[where.level][where.index] = block.next;
    if (block.next == kNone) {
      level_classes_[where.level] &= ~(1u << where.index);
      if (level_classes_[where.level] == 0) levels_ &= ~(1ull << where.level);
    }
  }
  starts_.erase(mix64(block.start), id);
  ends_.erase(mix64(block.start + block.length), id);
  spare_.push_back(id);
  free_granules_ -= block.length;
  return block;
}

std::uint32_t ExtentAllocator::block_at(const FlatIndex& index, std::uint64_t key,
                                        bool by_end) const {
  std::uint32_t found = kNone;
  index.find(mix64(key), [&](std::uint32_t id) {
    const std::uint64_t edge = by_end ? blocks_[id].start + blocks_[id].length : blocks_[id].start;
    if (edge == key) found = id;
    return found != kNone;
  });
  return found;
}

}  // namespace moonpool
