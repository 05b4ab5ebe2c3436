#include "key_heap.hpp"

#include "table_error.hpp"

namespace moonpool {

KeyHeap::At KeyHeap::append(std::int32_t row, std::string_view key) {
  const std::size_t need = block_bytes(key.size());
  if (open_ == SIZE_MAX || slabs_[open_].used + need > kSlabBytes) open_slab();
  Slab& slab = slabs_[open_];
  std::byte* block = slab.bytes.get() + slab.used;
  const auto length = static_cast<std::uint16_t>(key.size());
  std::memcpy(block, &row, 4);
  std::memcpy(block + 4, &length, 2);
  std::memcpy(block + kHeaderBytes, key.data(), key.size());
  const At at = at_of(open_, slab.used);
  slab.used += need;
  slab.live += need;
  live_bytes_ += need;
  return at;
}

void KeyHeap::erase(At at) {
  kill(at);
  const std::size_t slab = at / kUnitsPerSlab;
  if (slabs_[slab].live == 0 && slab != open_) release(slab);
}

// The block becomes a hole that a walk over the slab can step over.
void KeyHeap::kill(At at) {
  Slab& slab = slabs_[at / kUnitsPerSlab];
  std::byte* block = slab.bytes.get() + at % kUnitsPerSlab * kUnit;
  const std::size_t size = block_bytes(header(block).length);
  const std::int32_t dead = kDead;
  std::memcpy(block, &dead, 4);
  slab.live -= size;
  live_bytes_ -= size;
}

void KeyHeap::open_slab() {
  if (free_slabs_.empty()) {
    if (slabs_.size() == kSlabsMax) throw TableFull("keys take 32 GiB, the key heap's limit");
    slabs_.emplace_back();
    free_slabs_.push_back(slabs_.size() - 1);
  }
  const std::size_t number = free_slabs_.back();
  slabs_[number].bytes = std::make_unique_for_overwrite<std::byte[]>(kSlabBytes);
  slabs_[number].used = first_offset(number);
  slabs_[number].live = 0;
  free_slabs_.pop_back();
  held_++;
  const std::size_t before = std::exchange(open_, number);
  if (before != SIZE_MAX && slabs_[before].live == 0) release(before);
}

void KeyHeap::release(std::size_t slab) {
  slabs_[slab].bytes.reset();
  slabs_[slab].used = slabs_[slab].live = 0;
  free_slabs_.push_back(slab);
  held_--;
}

std::size_t KeyHeap::emptiest() const {
  std::size_t best = open_;
  for (std::size_t i = 0; i < slabs_.size(); i++) {
    if (i == open_ || slabs_[i].bytes == nullptr) continue;
    if (best == open_ || slabs_[i].live < slabs_[best].live) best = i;
  }
  return best;
}

}  // namespace moonpool
