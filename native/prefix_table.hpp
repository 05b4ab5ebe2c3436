// The blocks of the prefix index: entries in chunks, found by their own hash or by the engine's,
// linked to parent and children. 28 bytes an entry and 4 a place in each of two indexes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "children.hpp"
#include "entry_index.hpp"
#include "prefetch.hpp"

namespace moonpool {

struct PrefixEntry {
  static constexpr std::uint32_t kNone = EntryIndex::kNone;

  std::uint32_t hash_words[2];
  std::uint32_t engine_words[2];  // the engine's key, 0 when there is none or it is the own hash
  std::uint32_t set;              // kNone: the entry is free
  std::uint32_t parent;           // kNone: a first block
  Children children;

  std::uint64_t hash() const { return word(hash_words); }
  std::uint64_t engine() const { return word(engine_words); }
  void set_hash(std::uint64_t value) { std::memcpy(hash_words, &value, sizeof value); }
  void set_engine(std::uint64_t value) { std::memcpy(engine_words, &value, sizeof value); }
  bool free() const { return set == kNone; }

 private:
  static std::uint64_t word(const std::uint32_t* from) {
    std::uint64_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
};
static_assert(sizeof(PrefixEntry) == 28);

class PrefixTable {
 public:
  static constexpr std::uint32_t kNone = EntryIndex::kNone;

  PrefixEntry& operator[](std::uint32_t number) {
    return chunks_[number / kChunk][number % kChunk];
  }
  const PrefixEntry& operator[](std::uint32_t number) const {
    return chunks_[number / kChunk][number % kChunk];
  }

  std::uint32_t find(std::uint64_t hash) const {
    return by_hash_.find(hash, [&](std::uint32_t n) { return (*this)[n].hash() == hash; });
  }
  // `number` if that is the entry of the hash, else kNone: entries stored in one go have numbers
  // that follow each other.
  std::uint32_t at(std::uint64_t number, std::uint64_t hash) const {
    if (number >= high_) return kNone;
    const auto guess = static_cast<std::uint32_t>(number);
    return (*this)[guess].hash() == hash && !(*this)[guess].free() ? guess : kNone;
  }
  // As find; an entry whose neighbour is `near` in the chain, `steps` further, is found at once
  // when they were stored in one go.
  std::uint32_t find_near(std::uint64_t hash, std::uint32_t near, std::uint64_t steps) const {
    const std::uint32_t found = near == kNone ? kNone : at(near + steps, hash);
    return found == kNone ? find(hash) : found;
  }
  std::uint32_t find_engine(std::uint64_t key) const {
    return by_engine_.find(key, [&](std::uint32_t n) { return (*this)[n].engine() == key; });
  }
  // As find() and find_engine(); when it is not there, `cell` is its place in the index for
  // insert() or map_engine(), as long as nothing else changes.
  std::uint32_t find(std::uint64_t hash, std::size_t& cell) const {
    return by_hash_.find(hash, [&](std::uint32_t n) { return (*this)[n].hash() == hash; }, cell);
  }
  std::uint32_t find_engine(std::uint64_t key, std::size_t& cell) const {
    return by_engine_.find(key, [&](std::uint32_t n) { return (*this)[n].engine() == key; }, cell);
  }

  // Is there room for one entry more and its engine's key? If not: grow(), which takes so many
  // bytes, or clean(), which takes none and gives enough only in a sparse table.
  bool ready() const { return has_entry() && !by_hash_.full() && !by_engine_.full(); }
  std::size_t bytes_to_grow() const;
  void grow();
  void clean();
  bool sparse() const { return has_entry() && by_hash_.sparse() && by_engine_.sparse(); }

  // A new entry with the empty set and no parent.
  std::uint32_t insert(std::uint64_t hash, std::size_t cell);
  bool can_map() const { return !by_engine_.full(); }
  void map_engine(std::uint32_t number, std::uint64_t key, std::size_t cell);
  // Without children; its parent loses it.
  void erase(std::uint32_t number);
  void link(std::uint32_t number, std::uint32_t parent) {
    (*this)[number].parent = parent;
    lists_.add((*this)[parent].children, number);
  }

  void ask(std::uint64_t hash) const { by_hash_.ask(hash); }
  void ask_engine(std::uint64_t key) const { by_engine_.ask(key); }
  void ask_entry(std::uint64_t hash) const {
    const std::uint32_t number = by_hash_.likely(hash);
    if (number != kNone) prefetch(&(*this)[number]);
  }

  // fn(child) until it says true; false when none did or when they are too many to be listed.
  template <class Call>
  bool any_child(std::uint32_t number, Call call) const {
    return lists_.any((*this)[number].children, call);
  }
  bool too_many_children(std::uint32_t number) const { return (*this)[number].children.counted(); }

  std::uint32_t high() const { return high_; }  // numbers ever used
  std::size_t size() const { return high_ - free_.size(); }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kChunk = 4096;

  bool has_entry() const { return !free_.empty() || high_ < chunks_.size() * kChunk; }
  template <class Key>
  void rebuild(EntryIndex& index, std::size_t cells, Key key);
  void rebuild_by_hash(std::size_t cells);
  void rebuild_by_engine(std::size_t cells);

  std::vector<std::unique_ptr<PrefixEntry[]>> chunks_;
  std::vector<std::uint32_t> free_;
  std::uint32_t high_ = 0;
  EntryIndex by_hash_, by_engine_;
  ChildLists lists_;
};

}  // namespace moonpool
