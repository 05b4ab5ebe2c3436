// Who holds which prefix: own prefix hash -> set of holders. A holder is a slot (a tier, or what is
// only guessed) of a place (a worker's rank; place 0 is the pool).
//
// Nothing needs its parent to be found: lost, repeated and late events cost at most the blocks they
// spoke of. Memory is counted and bounded; above the bound leaves go, least recently used first.
//
// A search bisects, since what a holder has is usually closed under "the block before". Where it is
// not, the place is torn: the holder has a child of a block that it does not have. Such blocks are
// known by holder, and holders that have some are checked block by block. Every torn block is one
// that the holder really lacks, so a stale one costs time, never a wrong answer.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "flat_map.hpp"
#include "holder_sets.hpp"
#include "prefix_table.hpp"

namespace moonpool {

inline constexpr std::uint32_t kSlots = 8;
inline constexpr std::uint32_t kDevice = 0, kHost = 1, kDisk = 2;  // the rest are guesses
inline constexpr std::uint32_t kPlacesMax = 1 << 16;

struct IndexCounts {
  std::uint64_t blocks;   // different ones that somebody holds
  std::uint64_t entries;  // kept, those that only link others included
  std::uint64_t sets;
  std::uint64_t memory_bytes;
  std::uint64_t evicted;
  std::uint64_t torn;
};

class PrefixIndex {
 public:
  // Throws std::invalid_argument below 1 MiB.
  explicit PrefixIndex(std::size_t bytes_max);

  // The place holds these blocks from now on, one after the other, the first after `parent` (0:
  // it is a first block). Throws std::invalid_argument on a place or slot out of range.
  void store(std::uint32_t place, std::uint32_t slot, std::span<const std::uint64_t> hashes,
             std::uint64_t parent);
  // No longer; what it does not hold is passed over. How many it held. Quickest from a chain's end
  // or from its start on, in the order of the chain.
  std::size_t remove(std::uint32_t place, std::uint32_t slot,
                     std::span<const std::uint64_t> hashes);
  void drop(std::uint32_t place, std::uint32_t slot);
  void drop_place(std::uint32_t place) {
    for (std::uint32_t slot = 0; slot < kSlots; slot++) drop(place, slot);
  }
  void drop_slot(std::uint32_t slot);  // of every place

  // Leading blocks of `chain` that each place holds, cumulative by tier: on the device or guessed,
  // with host memory, with disk. `pool`: those of place 0, all tiers.
  void find(std::span<const std::uint64_t> chain, std::span<const std::int64_t> places,
            std::int64_t* device, std::int64_t* host, std::int64_t* disk, std::int64_t* pool);
  // Every place that has something of the chain, and how much, all tiers.
  std::vector<std::pair<std::uint32_t, std::int64_t>> holders(std::span<const std::uint64_t> chain);

  std::uint64_t held(std::uint32_t place, std::uint32_t slot) const {
    const std::lock_guard lock(mutex_);
    return count_at(place, slot);
  }
  void held_each(std::span<const std::int64_t> places, std::uint32_t slot,
                 std::int64_t* held) const;
  std::uint64_t evicted() const {  // blocks, for want of room
    const std::lock_guard lock(mutex_);
    return evicted_;
  }
  IndexCounts counts() const;
  std::size_t memory_bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes();
  }

 private:
  friend class EngineFeed;  // stores by the engine's keys, under the same lock
  friend class PrefixSearch;
  static constexpr std::uint32_t kNone = EntryIndex::kNone;

  struct Holder {
    std::uint32_t place = 0;
    std::uint32_t slot = 0;
    std::uint64_t count = 0;
    FlatMap<char> torn;  // hashes of blocks it lacks and has a child of
  };

  std::uint32_t holder_of(std::uint32_t place, std::uint32_t slot) const;
  std::uint64_t count_at(std::uint32_t place, std::uint32_t slot) const {
    const std::uint32_t holder = holder_of(place, slot);
    return holder == kNone ? 0 : holders_[holder].count;
  }
  std::uint32_t make_holder(std::uint32_t place, std::uint32_t slot);
  // The entries of the run are in numbers_ then: fewer than hashes where not all of it has room.
  void store_run(std::uint32_t holder, std::span<const std::uint64_t> hashes, std::uint64_t parent);
  bool store_blocks(std::uint32_t holder, std::span<const std::uint64_t> run);
  bool descends(std::uint32_t number, std::uint32_t ancestor) const;
  std::size_t remove_run(std::uint32_t holder, std::span<const std::uint64_t> run);
  bool remove_one(std::uint32_t holder, std::uint64_t hash);
  bool remove_entry(std::uint32_t holder, std::uint32_t number);
  // The place says that it lost a block: what was guessed of it before counts no more.
  void remove_guess(std::uint32_t place, std::uint64_t hash);
  std::uint32_t entry_for(std::uint64_t hash);
  std::uint32_t make_entry(std::uint64_t hash, std::size_t cell);
  std::uint32_t store_new(std::uint64_t hash, std::size_t cell, std::uint32_t holder);
  void give(std::uint32_t number, std::uint32_t holder);
  void take(std::uint32_t number, std::uint32_t holder);
  void mend_parent(std::uint32_t number, std::uint32_t holder);
  bool holds_child(std::uint32_t number, std::uint32_t holder) const;
  void free_unheld(std::uint32_t number);
  void drop_holder(std::uint32_t holder);
  bool holds(std::uint32_t number, std::uint32_t holder) const {
    return sets_.contains(sets_.resolve(table_[number].set), holder);
  }
  void link(std::uint32_t number, std::uint32_t parent);
  bool has_room() const { return table_.ready() && table_.size() < EntryIndex::kNumbersMax; }
  bool make_room();
  void bound_sets();
  bool evict_one();
  void sweep(std::uint32_t steps);
  void touch(std::uint32_t number) { touched_[number / 64] |= std::uint64_t{1} << (number % 64); }
  std::size_t bytes() const;

  mutable std::mutex mutex_;
  std::size_t bytes_max_;
  PrefixTable table_;
  HolderSets sets_;
  std::vector<Holder> holders_;
  std::vector<std::array<std::uint32_t, kSlots>> places_;  // holder of each slot, or kNone
  std::vector<std::uint64_t> touched_;  // a bit an entry, for the eviction's hand
  std::vector<std::uint32_t> numbers_;  // entries of the run stored, or looked for, last
  std::uint64_t blocks_ = 0;
  std::uint64_t evicted_ = 0;
  std::uint32_t pinned_ = kNone;  // an entry that must not go, though nothing may hold it yet
  std::uint32_t hand_ = 0;
  std::uint32_t above_ = kNone;  // of the block that was evicted last, its parent
  std::uint32_t sweep_at_ = 0;
  std::uint32_t sweep_left_ = 0;  // entries to look at since a drop
  std::size_t others_bytes_ = 0;  // of the feed on top, counted in here

  // Of the search under way: the entry at each place of the chain, valid where the stamp is right.
  std::vector<std::uint64_t> memo_;
  std::uint32_t memo_stamp_ = 0;
  std::vector<std::int64_t> depths_;
  std::vector<std::uint64_t> frames_;
};

}  // namespace moonpool
