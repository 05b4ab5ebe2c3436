#include "entry_index.hpp"

#include <algorithm>
#include <iterator>

namespace moonpool {
namespace {

constexpr std::size_t kSmallCells = 1 << 18;

}  // namespace

void EntryIndex::insert(std::uint64_t hash, std::uint32_t number) {
  std::size_t b = home(spread(hash));
  std::uint32_t free = 0;
  while ((free = buckets_[b].mask(kFreeBits, kGone)) == 0) b = next(b);
  insert_at(cell_in(b, free), hash, number);
}

void EntryIndex::erase(std::uint64_t hash, std::uint32_t number) {
  const std::uint64_t mixed = spread(hash);
  std::size_t b = home(mixed);
  std::uint32_t here = 0;
  while ((here = buckets_[b].mask(~0u, tag_of(mixed) | number)) == 0) b = next(b);
  // Where a search ends anyway nothing has to be walked over.
  const bool last = buckets_[b].mask(~0u, kNone) != 0;
  buckets_[b].cells[std::countr_zero(here)] = last ? kNone : kGone;
  if (last) used_--;
  live_--;
}

std::size_t EntryIndex::wanted_cells() const {
  // The same again when only gone ones fill it. Small indexes double, large ones spare memory.
  const std::size_t cells = std::max<std::size_t>(this->cells(), 1024);
  if ((live_ + 1) * 10 <= cells * 7) return cells;
  const std::size_t larger = cells < kSmallCells ? 2 * cells : cells + cells / 2;
  return (larger + kBucket - 1) / kBucket * kBucket;
}

void EntryIndex::reset(std::size_t cells) {
  Bucket empty;
  std::fill(std::begin(empty.cells), std::end(empty.cells), kNone);
  if (cells == this->cells()) {
    std::fill(buckets_.begin(), buckets_.end(), empty);
  } else {
    std::vector<Bucket>(cells / kBucket, empty).swap(buckets_);
  }
  used_ = live_ = 0;
}

}  // namespace moonpool
