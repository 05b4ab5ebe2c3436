// One search of the prefix index: how deep each holder's run of leading blocks is.
#pragma once
#include <cstdint>
#include <span>

#include "prefix_index.hpp"

namespace moonpool {

// Lives for one find, under the index's lock.
class PrefixSearch {
 public:
  PrefixSearch(PrefixIndex& index, std::span<const std::uint64_t> chain);

  // Leading blocks that the place has in any of the slots of `slots` (bits), at least `from`.
  std::int64_t depth(std::uint32_t place, std::uint32_t slots, std::int64_t from);

 private:
  static constexpr std::uint32_t kNone = EntryIndex::kNone;

  std::uint32_t number(std::size_t i);  // entry of chain[i] or kNone
  std::uint32_t set(std::size_t i);     // its set, resolved
  bool has(std::uint32_t holder, std::size_t i) { return index_.sets_.contains(set(i), holder); }
  void bisect_all();
  void split(std::size_t low, std::size_t high, const std::uint64_t* holders, std::size_t level);
  void settle(const std::uint64_t* holders, std::size_t depth);
  void mend();
  std::int64_t extend(std::uint32_t holder, std::int64_t from);
  std::size_t bisect_one(std::uint32_t holder, std::size_t low, std::size_t high);
  std::size_t first_torn(std::uint32_t holder, std::size_t low, std::size_t high) const;

  PrefixIndex& index_;
  std::span<const std::uint64_t> chain_;
  std::size_t words_;
  std::size_t near_ = 0;  // where the entry found last is in the chain
  std::uint32_t near_number_ = kNone;
};

}  // namespace moonpool
