#include "prefix_table.hpp"

#include <optional>

namespace moonpool {

std::size_t PrefixTable::bytes_to_grow() const {
  std::size_t bytes = has_entry() ? 0 : kChunk * sizeof(PrefixEntry);
  for (const EntryIndex* index : {&by_hash_, &by_engine_}) {
    if (index->full()) bytes += index->wanted_cells() * sizeof(std::uint32_t);
  }
  return bytes;
}

void PrefixTable::grow() {
  if (!has_entry()) chunks_.push_back(std::make_unique<PrefixEntry[]>(kChunk));
  if (by_hash_.full()) rebuild_by_hash(by_hash_.wanted_cells());
  if (by_engine_.full()) rebuild_by_engine(by_engine_.wanted_cells());
}

void PrefixTable::clean() {
  if (by_hash_.full()) rebuild_by_hash(by_hash_.cells());
  if (by_engine_.full()) rebuild_by_engine(by_engine_.cells());
}

std::uint32_t PrefixTable::insert(std::uint64_t hash, std::size_t cell) {
  std::uint32_t number = high_;
  if (free_.empty()) {
    high_++;
  } else {
    number = free_.back();
    free_.pop_back();
  }
  PrefixEntry& entry = (*this)[number];
  entry = PrefixEntry{};
  entry.set_hash(hash);
  entry.set = 0;
  entry.parent = kNone;
  by_hash_.insert_at(cell, hash, number);
  return number;
}

void PrefixTable::map_engine(std::uint32_t number, std::uint64_t key, std::size_t cell) {
  (*this)[number].set_engine(key);
  by_engine_.insert_at(cell, key, number);
}

void PrefixTable::erase(std::uint32_t number) {
  PrefixEntry& entry = (*this)[number];
  by_hash_.erase(entry.hash(), number);
  if (entry.engine() != 0) by_engine_.erase(entry.engine(), number);
  if (entry.parent != kNone) lists_.remove((*this)[entry.parent].children, number);
  entry.set = kNone;
  entry.set_engine(0);
  free_.push_back(number);
}

std::size_t PrefixTable::memory_bytes() const {
  return chunks_.size() * kChunk * sizeof(PrefixEntry) + by_hash_.memory_bytes() +
         by_engine_.memory_bytes() + lists_.memory_bytes() +
         free_.capacity() * sizeof(std::uint32_t);
}

// Entries come in their order, their places in the index do not: the memory of each is asked for
// some entries before it is written. `key(entry)`: null where the entry has none.
template <class Key>
void PrefixTable::rebuild(EntryIndex& index, std::size_t cells, Key key) {
  constexpr std::uint32_t kAhead = 16;
  index.reset(cells);
  for (std::uint32_t n = 0; n < high_; n++) {
    if (n + kAhead < high_) {
      if (const auto next = key((*this)[n + kAhead])) index.ask_cell(*next);
    }
    if (const auto mine = key((*this)[n])) index.insert(*mine, n);
  }
}

void PrefixTable::rebuild_by_hash(std::size_t cells) {
  rebuild(by_hash_, cells, [](const PrefixEntry& entry) {
    return entry.free() ? std::nullopt : std::optional(entry.hash());
  });
}

void PrefixTable::rebuild_by_engine(std::size_t cells) {
  rebuild(by_engine_, cells, [](const PrefixEntry& entry) {
    const bool named = !entry.free() && entry.engine() != 0;
    return named ? std::optional(entry.engine()) : std::nullopt;
  });
}

}  // namespace moonpool
