#include "prefix_search.hpp"

#include <algorithm>
#include <bit>

namespace moonpool {
namespace {

constexpr std::uint32_t kDeviceSlots = 0b11111001;  // the device and what is guessed of it
constexpr std::uint32_t kHostSlots = kDeviceSlots | 1 << kHost;
constexpr std::uint32_t kAllSlots = 0xff;

}  // namespace

void PrefixIndex::find(std::span<const std::uint64_t> chain, std::span<const std::int64_t> places,
                       std::int64_t* device, std::int64_t* host, std::int64_t* disk,
                       std::int64_t* pool) {
  const std::lock_guard lock(mutex_);
  PrefixSearch search(*this, chain);
  for (std::size_t i = 0; i < places.size(); i++) {
    const auto place = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(places[i], 0, std::int64_t{kPlacesMax}));
    device[i] = search.depth(place, kDeviceSlots, 0);
    host[i] = search.depth(place, kHostSlots, device[i]);
    disk[i] = search.depth(place, kAllSlots, host[i]);
  }
  *pool = search.depth(0, kAllSlots, 0);
}

std::vector<std::pair<std::uint32_t, std::int64_t>> PrefixIndex::holders(
    std::span<const std::uint64_t> chain) {
  const std::lock_guard lock(mutex_);
  PrefixSearch search(*this, chain);
  std::vector<std::pair<std::uint32_t, std::int64_t>> found;
  for (std::uint32_t place = 0; place < places_.size(); place++) {
    const std::int64_t depth = search.depth(place, kAllSlots, 0);
    if (depth > 0) found.emplace_back(place, depth);
  }
  return found;
}

PrefixSearch::PrefixSearch(PrefixIndex& index, std::span<const std::uint64_t> chain)
    : index_(index), chain_(chain) {
  if (index_.memo_.size() < chain.size()) index_.memo_.resize(chain.size());
  if (++index_.memo_stamp_ == 0) {
    std::fill(index_.memo_.begin(), index_.memo_.end(), 0);
    index_.memo_stamp_ = 1;
  }
  index_.depths_.assign(index_.holders_.size(), 0);
  words_ = index_.sets_.words(HolderSets::kEmpty).size();
  if (!chain.empty()) bisect_all();
  mend();
}

std::int64_t PrefixSearch::depth(std::uint32_t place, std::uint32_t slots, std::int64_t from) {
  if (place >= index_.places_.size()) return from;
  const auto& holders = index_.places_[place];
  std::int64_t deepest = from;
  std::uint32_t several = 0;
  for (std::uint32_t rest = slots; rest != 0; rest &= rest - 1) {
    const std::uint32_t holder = holders[static_cast<std::size_t>(std::countr_zero(rest))];
    if (holder == kNone || index_.holders_[holder].count == 0) continue;
    deepest = std::max(deepest, index_.depths_[holder]);
    several++;
  }
  if (several < 2) return deepest;  // one alone: nothing that another could go on from
  // What one slot ends with, another may go on with, and so on in turn.
  for (bool further = true; further;) {
    further = false;
    for (std::uint32_t rest = slots; rest != 0; rest &= rest - 1) {
      const std::uint32_t holder = holders[static_cast<std::size_t>(std::countr_zero(rest))];
      if (holder == kNone || index_.holders_[holder].count == 0) continue;
      const std::int64_t reached = extend(holder, deepest);
      further |= reached > deepest;
      deepest = std::max(deepest, reached);
    }
  }
  return deepest;
}

std::uint32_t PrefixSearch::number(std::size_t i) {
  std::uint64_t& memo = index_.memo_[i];
  if (memo >> 32 == index_.memo_stamp_) return static_cast<std::uint32_t>(memo);
  const std::uint32_t found =
      index_.table_.find_near(chain_[i], near_number_, static_cast<std::uint64_t>(i) - near_);
  memo = std::uint64_t{index_.memo_stamp_} << 32 | found;
  if (found != kNone) {
    near_ = i;
    near_number_ = found;
  }
  return found;
}

std::uint32_t PrefixSearch::set(std::size_t i) {
  const std::uint32_t entry = number(i);
  return entry == kNone ? HolderSets::kEmpty : index_.sets_.resolve(index_.table_[entry].set);
}

// All holders at once: a span whose ends the same ones hold needs no look inside.
void PrefixSearch::bisect_all() {
  index_.frames_.resize(words_ * 130);
  std::uint64_t* const first = index_.frames_.data();
  std::uint64_t any = 0;
  const auto holding = index_.sets_.words(set(0));
  for (std::size_t w = 0; w < words_; w++) any |= first[w] = holding[w];
  if (any == 0) return;
  const std::size_t last = chain_.size() - 1;
  if (last == 0) return settle(first, 1);
  std::uint64_t* const whole = first + words_;
  std::uint64_t left = 0;
  const auto at_last = index_.sets_.words(set(last));
  for (std::size_t w = 0; w < words_; w++) {
    whole[w] = first[w] & at_last[w];
    first[w] &= ~at_last[w];
    left |= first[w];
  }
  settle(whole, chain_.size());
  if (left != 0) split(0, last, first, 1);
}

// `holders` have chain[low] and not chain[high].
void PrefixSearch::split(std::size_t low, std::size_t high, const std::uint64_t* holders,
                         std::size_t level) {
  if (high - low == 1) return settle(holders, high);
  const std::size_t middle = low + (high - low) / 2;
  std::uint64_t* const before = index_.frames_.data() + level * 2 * words_;
  std::uint64_t* const after = before + words_;
  std::uint64_t any_before = 0, any_after = 0;
  const auto holding = index_.sets_.words(set(middle));
  for (std::size_t w = 0; w < words_; w++) {
    any_before |= before[w] = holders[w] & ~holding[w];
    any_after |= after[w] = holders[w] & holding[w];
  }
  if (any_before != 0) split(low, middle, before, level + 1);
  if (any_after != 0) split(middle, high, after, level + 1);
}

void PrefixSearch::settle(const std::uint64_t* holders, std::size_t depth) {
  bool any = false;
  for (std::size_t w = 0; w < words_; w++) {
    for (std::uint64_t rest = holders[w]; rest != 0; rest &= rest - 1) {
      index_.depths_[w * 64 + static_cast<std::size_t>(std::countr_zero(rest))] =
          static_cast<std::int64_t>(depth);
      any = true;
    }
  }
  if (any) index_.touch(number(depth - 1));
}

// Holders with gaps: their run ends before the first block that they are known to lack.
void PrefixSearch::mend() {
  for (std::uint32_t holder = 0; holder < index_.holders_.size(); holder++) {
    std::int64_t& depth = index_.depths_[holder];
    if (depth < 2 || index_.holders_[holder].torn.empty()) continue;
    const auto found = static_cast<std::size_t>(depth);
    const std::size_t torn = first_torn(holder, 1, found);
    if (torn < found) depth = static_cast<std::int64_t>(bisect_one(holder, 0, torn));
  }
}

std::int64_t PrefixSearch::extend(std::uint32_t holder, std::int64_t from) {
  const auto low = static_cast<std::size_t>(from);
  if (low >= chain_.size() || !has(holder, low)) return from;
  std::size_t high = chain_.size();
  if (!has(holder, high - 1)) high = bisect_one(holder, low, high - 1);
  const std::size_t torn = first_torn(holder, low + 1, high);
  if (torn < high) high = bisect_one(holder, low, torn);
  return static_cast<std::int64_t>(high);
}

// The first block after `low`, which the holder has, that it lacks; it lacks chain[high].
std::size_t PrefixSearch::bisect_one(std::uint32_t holder, std::size_t low, std::size_t high) {
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (has(holder, middle) ? low : high) = middle;
  }
  return high;
}

std::size_t PrefixSearch::first_torn(std::uint32_t holder, std::size_t low,
                                     std::size_t high) const {
  const FlatMap<char>& torn = index_.holders_[holder].torn;
  if (torn.empty()) return high;
  while (low < high && !torn.contains(chain_[low])) low++;
  return low;
}

}  // namespace moonpool
