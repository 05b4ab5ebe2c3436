#include "holder_sets.hpp"

#include <algorithm>

#include "mix.hpp"

namespace moonpool {
namespace {

std::uint64_t word_of(std::uint32_t holder) { return mix64(holder + 0x9e3779b97f4a7c15); }

}  // namespace

HolderSets::HolderSets() : bits_(1), records_(1), table_(64, kNone) { intern(kEmpty); }

std::uint32_t HolderSets::with(std::uint32_t set, std::uint32_t holder) {
  reach(holder);
  return changed(set, holder, true);
}

std::uint32_t HolderSets::without(std::uint32_t set, std::uint32_t holder) {
  return changed(set, holder, false);
}

std::uint32_t HolderSets::changed(std::uint32_t set, std::uint32_t holder, bool present) {
  if (contains(set, holder) == present) return set;
  if (set != last_set_ || holder != last_holder_) {
    last_result_ = found_or_made(set, holder);
    last_set_ = set;
    last_holder_ = holder;
  }
  return last_result_;
}

std::uint32_t HolderSets::found_or_made(std::uint32_t set, std::uint32_t holder) {
  const std::uint64_t hash = records_[set].hash ^ word_of(holder);
  const std::uint32_t found = find_changed(set, holder, hash);
  return found != kNone ? found : make(set, holder, hash);
}

// The interned set that differs from `set` by this holder only.
std::uint32_t HolderSets::find_changed(std::uint32_t set, std::uint32_t holder,
                                       std::uint64_t hash) const {
  for (std::size_t i = slot_of(hash); table_[i] != kNone; i = (i + 1) & (table_.size() - 1)) {
    const std::uint32_t other = table_[i];
    if (records_[other].hash != hash) continue;
    bool same = true;
    for (std::size_t w = 0; w < stride_ && same; w++) {
      const std::uint64_t flip = w == holder / 64 ? std::uint64_t{1} << (holder % 64) : 0;
      same = bits(other)[w] == (bits(set)[w] ^ flip);
    }
    if (same) return other;
  }
  return kNone;
}

std::uint32_t HolderSets::make(std::uint32_t like, std::uint32_t holder, std::uint64_t hash) {
  std::uint32_t set;
  if (free_.empty()) {
    set = static_cast<std::uint32_t>(records_.size());
    records_.emplace_back();
    bits_.resize(records_.size() * stride_);
  } else {
    set = free_.back();
    free_.pop_back();
    records_[set] = Record{};
  }
  std::copy_n(bits(like), stride_, bits(set));
  bits(set)[holder / 64] ^= std::uint64_t{1} << (holder % 64);
  records_[set].hash = hash;
  intern(set);
  return set;
}

void HolderSets::count(std::uint32_t set, std::int64_t entries) {
  records_[set].entries += static_cast<std::uint32_t>(entries);
  for (std::uint32_t s = set;; s = records_[s].forward) {
    records_[s].total += static_cast<std::uint64_t>(entries);
    if (records_[s].forward == kNone) return;
  }
}

void HolderSets::move_entry(std::uint32_t from, std::uint32_t to) {
  if (from == to) return;
  count(to, 1);
  drop_entry(from);
}

void HolderSets::drop_entry(std::uint32_t set) {
  count(set, -1);
  release(set);
}

// Frees a set that nothing names any more, and those that only it kept.
void HolderSets::release(std::uint32_t set) {
  while (set != kEmpty && records_[set].entries == 0 && records_[set].links == 0) {
    const std::uint32_t forward = records_[set].forward;
    if (records_[set].interned) forget(set);
    free_.push_back(set);
    records_[set].forward = kNone;
    std::fill_n(bits(set), stride_, 0);  // a walk over all sets finds nothing in a free one
    if (forward == kNone) return;
    records_[forward].links--;
    set = forward;
  }
}

std::size_t HolderSets::erase_holder(std::uint32_t holder) {
  if (holder / 64 >= stride_) return 0;
  std::size_t emptied = 0;
  for (std::uint32_t set = 1; set < records_.size(); set++) {
    Record& record = records_[set];
    if (record.forward != kNone || !contains(set, holder)) continue;
    const std::uint64_t hash = record.hash ^ word_of(holder);
    const std::uint32_t same = find_changed(set, holder, hash);
    forget(set);
    bits(set)[holder / 64] ^= std::uint64_t{1} << (holder % 64);
    record.hash = hash;
    if (same == kNone) {
      intern(set);
      continue;
    }
    if (same == kEmpty) emptied += record.total;
    record.forward = same;
    records_[same].links++;
    for (std::uint32_t s = same;; s = records_[s].forward) {
      records_[s].total += record.total;
      if (records_[s].forward == kNone) break;
    }
  }
  return emptied;
}

std::size_t HolderSets::memory_bytes() const {
  return bits_.capacity() * sizeof(std::uint64_t) + records_.capacity() * sizeof(Record) +
         (free_.capacity() + table_.capacity()) * sizeof(std::uint32_t);
}

// Makes room for the holder's bit in every set.
void HolderSets::reach(std::uint32_t holder) {
  if (holder / 64 < stride_) return;
  const std::size_t stride = std::max<std::size_t>(holder / 64 + 1, stride_ * 2);
  std::vector<std::uint64_t> wider(records_.size() * stride);
  for (std::size_t set = 0; set < records_.size(); set++) {
    std::copy_n(bits_.data() + set * stride_, stride_, wider.data() + set * stride);
  }
  bits_.swap(wider);
  stride_ = stride;
}

void HolderSets::intern(std::uint32_t set) {
  if ((interned_ + 1) * 2 > table_.size()) rehash(table_.size() * 2);
  std::size_t i = slot_of(records_[set].hash);
  while (table_[i] != kNone) i = (i + 1) & (table_.size() - 1);
  table_[i] = set;
  records_[set].interned = true;
  interned_++;
}

void HolderSets::forget(std::uint32_t set) {
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = slot_of(records_[set].hash);
  while (table_[hole] != set) hole = (hole + 1) & mask;
  for (std::size_t i = (hole + 1) & mask; table_[i] != kNone; i = (i + 1) & mask) {
    const std::size_t home = slot_of(records_[table_[i]].hash);
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    table_[hole] = table_[i];
    hole = i;
  }
  table_[hole] = kNone;
  records_[set].interned = false;
  interned_--;
  last_set_ = kNone;
}

void HolderSets::rehash(std::size_t slots) {
  std::vector<std::uint32_t> old(slots, kNone);
  old.swap(table_);
  for (const std::uint32_t set : old) {
    if (set == kNone) continue;
    std::size_t i = slot_of(records_[set].hash);
    while (table_[i] != kNone) i = (i + 1) & (slots - 1);
    table_[i] = set;
  }
}

}  // namespace moonpool
