// The index fed by what engines publish: blocks under the engine's own hashes, with their tokens.
//
// Engine hashes are opaque. One table maps them to own hashes for all workers, since most engines
// give equal blocks equal hashes; where a worker's differ, it gets a map of its own. Blocks whose
// parent is not known yet wait, bounded, until it is: their own hash cannot be computed before.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "prefix_index.hpp"
#include "range_digest.hpp"

namespace moonpool {

// What the chain of these begins with; all three empty: 0.
std::uint64_t prefix_seed(std::string_view model, std::string_view space, std::string_view adapter);
// The same from a seed of the model alone.
std::uint64_t prefix_seed(std::uint64_t model_seed, std::string_view space,
                          std::string_view adapter);
// Of a further KV group of a hybrid model; group 0 is the seed itself.
std::uint64_t group_seed(std::uint64_t seed, std::uint64_t group);

// Blocks as an engine names them: keys[i] with the content (chain step) contents[i].
struct EngineBlocks {
  std::span<const std::uint64_t> keys;
  std::span<const std::uint64_t> contents;
  std::uint64_t parent;  // engine key, 0: a first block
  std::uint64_t seed;    // of a first block
};

class EngineFeed {
 public:
  static constexpr std::size_t kOrphanBlocks = 1 << 16;

  explicit EngineFeed(PrefixIndex& index) : index_(index) {}

  // How many blocks wait for their parent.
  std::size_t store(std::uint32_t place, std::uint32_t slot, const EngineBlocks& blocks) {
    const std::size_t waiting = store_soon(place, slot, blocks);
    settle();
    return waiting;
  }
  // The same, but they count only with the next call that changes something here, or settle(): the
  // memory that they need comes while the caller reads the next event. The index and digest() do
  // not know of them before.
  std::size_t store_soon(std::uint32_t place, std::uint32_t slot, const EngineBlocks& blocks);
  void settle();
  // Known blocks that changed or joined a tier: no tokens come with it. How many are unknown.
  std::size_t move(std::uint32_t place, std::uint32_t slot, std::span<const std::uint64_t> keys);
  // How many were held.
  std::size_t remove(std::uint32_t place, std::uint32_t slot, std::span<const std::uint64_t> keys);
  // What the place holds in the slot, by the engine's names with `domain` taken off, or the own
  // hash of a block that no engine named. Walks the whole index: a few nanoseconds a block.
  RangeDigests digest(std::uint32_t place, std::uint32_t slot, std::uint64_t domain) const;
  // Removes what it holds in these ranges of names. How many.
  std::size_t remove_ranges(std::uint32_t place, std::uint32_t slot, std::uint64_t domain,
                            const RangeMarks& ranges);
  // What the place said before counts no more: orphans and its own names of blocks.
  void forget(std::uint32_t place);

  std::size_t orphan_blocks() const;
  std::size_t aliases() const;
  std::uint64_t orphans_lost() const { return orphans_lost_; }

 private:
  struct Orphan {
    std::uint32_t place;
    std::uint32_t slot;
    std::uint64_t parent;
    std::vector<std::uint64_t> keys;  // 0: removed while it waited
    std::vector<std::uint64_t> contents;
    bool gone = false;
  };

  // The blocks stored last.
  struct Pending {
    bool there = false;
    bool first = false;  // nothing comes before them
    std::uint32_t place = 0;
    std::uint32_t slot = 0;
    std::uint64_t before = 0;
    std::vector<std::uint64_t> keys;
    std::vector<std::uint64_t> hashes;
  };

  static std::uint64_t at_place(std::uint64_t key, std::uint32_t place) {
    return mix64(key ^ mix64(place + 1));
  }
  template <class Visit>
  void each_name(std::uint32_t place, std::uint32_t holder, std::uint64_t domain,
                 Visit visit) const;
  const std::uint64_t* own_of(std::uint32_t place, std::uint64_t key);
  void settle_pending();
  void hash(std::span<const std::uint64_t> keys, std::span<const std::uint64_t> contents,
            std::uint64_t before, std::vector<std::uint64_t>& hashes) const;
  void store_known(const Pending& run);
  void name(std::uint32_t place, std::uint32_t number, std::uint64_t hash, std::uint64_t key);
  void wait(std::uint32_t place, std::uint32_t slot, const EngineBlocks& blocks);
  void wake(std::vector<std::uint64_t> parents);
  void end_first_orphan();
  void account();

  PrefixIndex& index_;
  std::vector<FlatMap<std::uint64_t>> aliases_;  // by place: engine key -> own hash
  std::size_t alias_count_ = 0;
  std::uint64_t own_ = 0;

  std::deque<Orphan> orphans_;
  std::uint64_t first_orphan_ = 0;               // number of orphans_[0]
  FlatMap<std::vector<std::uint64_t>> waiting_;  // parent's key -> orphans
  FlatMap<std::uint64_t> orphan_of_;             // key at place -> orphan
  std::size_t orphan_blocks_ = 0;
  std::uint64_t orphans_lost_ = 0;

  Pending pending_;
};

}  // namespace moonpool
