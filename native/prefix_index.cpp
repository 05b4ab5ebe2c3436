#include "prefix_index.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace moonpool {
namespace {

constexpr std::size_t kBytesMin = 1 << 20;
constexpr std::size_t kRun = 64;           // blocks whose memory is asked for at once
constexpr std::size_t kTornMax = 1 << 16;  // a holder with more gaps is forgotten
constexpr std::uint32_t kSweepSteps = 64;  // entries looked at a call, after a drop

}  // namespace

PrefixIndex::PrefixIndex(std::size_t bytes_max) : bytes_max_(bytes_max) {
  if (bytes_max < kBytesMin) {
    throw std::invalid_argument("an index needs at least 1 MiB, not " + std::to_string(bytes_max) +
                                " bytes");
  }
}

void PrefixIndex::store(std::uint32_t place, std::uint32_t slot,
                        std::span<const std::uint64_t> hashes, std::uint64_t parent) {
  const std::lock_guard lock(mutex_);
  store_run(make_holder(place, slot), hashes, parent);
}

std::size_t PrefixIndex::remove(std::uint32_t place, std::uint32_t slot,
                                std::span<const std::uint64_t> hashes) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t holder = holder_of(place, slot);
  if (holder == kNone) return 0;
  sweep(kSweepSteps);
  std::size_t held = 0;
  for (std::size_t from = 0; from < hashes.size(); from += kRun) {
    const auto run = hashes.subspan(from, std::min(kRun, hashes.size() - from));
    held += remove_run(holder, run);
  }
  return held;
}

void PrefixIndex::drop(std::uint32_t place, std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t holder = holder_of(place, slot);
  if (holder != kNone) drop_holder(holder);
}

void PrefixIndex::drop_slot(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t holder = 0; holder < holders_.size(); holder++) {
    if (holders_[holder].slot == slot) drop_holder(holder);
  }
}

void PrefixIndex::held_each(std::span<const std::int64_t> places, std::uint32_t slot,
                            std::int64_t* held) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < places.size(); i++) {
    held[i] = static_cast<std::int64_t>(count_at(static_cast<std::uint32_t>(places[i]), slot));
  }
}

IndexCounts PrefixIndex::counts() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t torn = 0;
  for (const Holder& holder : holders_) torn += holder.torn.size();
  return {blocks_, table_.size(), sets_.size(), bytes(), evicted_, torn};
}

// Inside: holders

std::uint32_t PrefixIndex::holder_of(std::uint32_t place, std::uint32_t slot) const {
  if (slot >= kSlots) {
    throw std::invalid_argument("slot " + std::to_string(slot) + " is not within 0..7");
  }
  return place < places_.size() ? places_[place][slot] : kNone;
}

std::uint32_t PrefixIndex::make_holder(std::uint32_t place, std::uint32_t slot) {
  if (place >= kPlacesMax) {
    throw std::invalid_argument("place " + std::to_string(place) + " is not within 0.." +
                                std::to_string(kPlacesMax - 1));
  }
  const std::uint32_t found = holder_of(place, slot);
  if (found != kNone) return found;
  while (places_.size() <= place) {
    places_.emplace_back();
    places_.back().fill(kNone);
  }
  Holder& made = holders_.emplace_back();
  made.place = place;
  made.slot = slot;
  places_[place][slot] = static_cast<std::uint32_t>(holders_.size() - 1);
  return places_[place][slot];
}

void PrefixIndex::drop_holder(std::uint32_t holder) {
  if (holders_[holder].count == 0 && holders_[holder].torn.empty()) return;
  blocks_ -= sets_.erase_holder(holder);
  holders_[holder].count = 0;
  holders_[holder].torn.clear();
  sweep_left_ = table_.high();
}

// Inside: storing

void PrefixIndex::store_run(std::uint32_t holder, std::span<const std::uint64_t> hashes,
                            std::uint64_t parent) {
  numbers_.clear();
  if (hashes.empty()) return;
  sweep(kSweepSteps);
  bound_sets();
  const std::uint32_t above = parent == 0 ? kNone : entry_for(parent);
  if (parent != 0 && above == kNone) return;
  pinned_ = above;  // the last block has no child until the next one comes
  for (std::size_t from = 0; from < hashes.size(); from += kRun) {
    if (!store_blocks(holder, hashes.subspan(from, std::min(kRun, hashes.size() - from)))) break;
  }
  pinned_ = kNone;
  if (above != kNone) free_unheld(above);  // what came after it may hang elsewhere
  if (holders_[holder].torn.size() > kTornMax) drop_holder(holder);
}

// After the pinned block. False: the memory is full, and only blocks before these could go.
bool PrefixIndex::store_blocks(std::uint32_t holder, std::span<const std::uint64_t> run) {
  for (const std::uint64_t hash : run) table_.ask(hash);
  for (const std::uint64_t hash : run) table_.ask_entry(hash);
  for (const std::uint64_t hash : run) {
    std::size_t cell = 0;
    std::uint32_t number = table_.find(hash, cell);
    if (number == kNone) {
      number = store_new(hash, cell, holder);
      if (number == kNone) return false;
    } else {
      if (pinned_ != kNone && table_[number].parent == kNone && !descends(pinned_, number)) {
        link(number, pinned_);
      }
      give(number, holder);
    }
    numbers_.push_back(number);
    pinned_ = number;
  }
  return true;
}

// Most blocks are new: what entry_for(), link() and give() do, in one go. kNone: there is no room.
std::uint32_t PrefixIndex::store_new(std::uint64_t hash, std::size_t cell, std::uint32_t holder) {
  const std::uint32_t number = make_entry(hash, cell);
  if (number == kNone) return kNone;
  const std::uint32_t set = sets_.with(HolderSets::kEmpty, holder);
  sets_.add_entry(set);
  table_[number].set = set;
  blocks_++;
  Holder& mine = holders_[holder];
  mine.count++;
  mine.torn.erase(hash);
  if (pinned_ != kNone) {
    table_.link(number, pinned_);
    if (!holds(pinned_, holder)) mine.torn.at(table_[pinned_].hash());
  }
  return number;
}

// Is the entry `ancestor`, or does it come after it? Blocks told in a circle are not linked to one:
// each would have a child, and so none of them could ever go.
bool PrefixIndex::descends(std::uint32_t number, std::uint32_t ancestor) const {
  if (number == ancestor) return true;
  if (table_[ancestor].children.none()) return false;
  while (number != kNone && number != ancestor) number = table_[number].parent;
  return number == ancestor;
}

// From now on the entry's place in its chain is known: whoever has it and not the parent is torn.
void PrefixIndex::link(std::uint32_t number, std::uint32_t parent) {
  table_.link(number, parent);
  const auto mine = sets_.words(sets_.resolve(table_[number].set));
  const auto above = sets_.words(sets_.resolve(table_[parent].set));
  for (std::size_t w = 0; w < mine.size(); w++) {
    for (std::uint64_t rest = mine[w] & ~above[w]; rest != 0; rest &= rest - 1) {
      holders_[w * 64 + static_cast<std::size_t>(std::countr_zero(rest))].torn.at(
          table_[parent].hash());
    }
  }
}

// The entry of the hash, made when there is none: with the empty set, and so not yet anybody's.
// kNone: there is no room for it.
std::uint32_t PrefixIndex::entry_for(std::uint64_t hash) {
  std::size_t cell = 0;
  std::uint32_t number = table_.find(hash, cell);
  if (number != kNone) return number;
  number = make_entry(hash, cell);
  if (number != kNone) sets_.add_entry(HolderSets::kEmpty);
  return number;
}

// Its set has to be counted then.
std::uint32_t PrefixIndex::make_entry(std::uint64_t hash, std::size_t cell) {
  if (!has_room()) {
    if (!make_room()) return kNone;
    table_.find(hash, cell);
  }
  const std::uint32_t number = table_.insert(hash, cell);
  if (touched_.size() <= number / 64) touched_.resize(number / 64 + 1);
  touch(number);
  return number;
}

void PrefixIndex::give(std::uint32_t number, std::uint32_t holder) {
  PrefixEntry& entry = table_[number];
  const std::uint32_t set = sets_.resolve(entry.set);
  touch(number);
  if (sets_.contains(set, holder)) return;
  const std::uint32_t larger = sets_.with(set, holder);
  if (set == HolderSets::kEmpty) blocks_++;
  sets_.move_entry(entry.set, larger);
  entry.set = larger;
  Holder& mine = holders_[holder];
  mine.count++;
  mine.torn.erase(entry.hash());
  if (entry.parent != kNone && !holds(entry.parent, holder)) {
    mine.torn.at(table_[entry.parent].hash());
  }
}

// Inside: removing

// Blocks that were stored in one go lie beside each other, whichever end is named first. The end of
// a chain goes first: what goes before its child is torn until that goes, too.
std::size_t PrefixIndex::remove_run(std::uint32_t holder, std::span<const std::uint64_t> run) {
  for (const std::uint64_t hash : run) table_.ask(hash);
  numbers_.clear();
  std::uint32_t near = kNone;
  std::uint32_t step = ~std::uint32_t{0};  // one back
  for (const std::uint64_t hash : run) {
    std::uint32_t number = near == kNone ? kNone : table_.at(near + step, hash);
    if (number == kNone) number = table_.find(hash);
    if (number - near == 1 || near - number == 1) step = number - near;
    if (number != kNone) near = number;
    numbers_.push_back(number);
  }
  const bool forward =
      run.size() > 1 && numbers_[1] != kNone && table_[numbers_[1]].parent == numbers_[0];
  if (forward) std::reverse(numbers_.begin(), numbers_.end());
  std::size_t held = 0;
  for (const std::uint32_t number : numbers_) {
    held += number != kNone && remove_entry(holder, number);
  }
  return held;
}

bool PrefixIndex::remove_one(std::uint32_t holder, std::uint64_t hash) {
  const std::uint32_t number = table_.find(hash);
  return number != kNone && remove_entry(holder, number);
}

bool PrefixIndex::remove_entry(std::uint32_t holder, std::uint32_t number) {
  if (table_[number].free() || !holds(number, holder)) return false;
  const std::uint64_t hash = table_[number].hash();
  take(number, holder);
  if (!table_[number].children.none() &&
      (table_.too_many_children(number) || holds_child(number, holder))) {
    holders_[holder].torn.at(hash);
  }
  free_unheld(number);
  return true;
}

void PrefixIndex::remove_guess(std::uint32_t place, std::uint64_t hash) {
  for (std::uint32_t slot = kDisk + 1; slot < kSlots; slot++) {
    const std::uint32_t holder = holder_of(place, slot);
    if (holder != kNone && holders_[holder].count != 0) remove_one(holder, hash);
  }
}

void PrefixIndex::take(std::uint32_t number, std::uint32_t holder) {
  PrefixEntry& entry = table_[number];
  const std::uint32_t smaller = sets_.without(sets_.resolve(entry.set), holder);
  if (smaller == HolderSets::kEmpty) blocks_--;
  sets_.move_entry(entry.set, smaller);
  entry.set = smaller;
  holders_[holder].count--;
  mend_parent(number, holder);
}

// The last child of a block that the holder lacks is gone: nothing is torn there any more.
void PrefixIndex::mend_parent(std::uint32_t number, std::uint32_t holder) {
  FlatMap<char>& torn = holders_[holder].torn;
  const std::uint32_t parent = table_[number].parent;
  if (torn.empty() || parent == kNone || table_.too_many_children(parent)) return;
  if (!holds_child(parent, holder)) torn.erase(table_[parent].hash());
}

bool PrefixIndex::holds_child(std::uint32_t number, std::uint32_t holder) const {
  return table_.any_child(number, [&](std::uint32_t child) { return holds(child, holder); });
}

// Frees the entry when nobody holds it and nothing hangs below it; then perhaps its parents.
void PrefixIndex::free_unheld(std::uint32_t number) {
  while (number != kNone && number != pinned_ && !table_[number].free() &&
         table_[number].children.none() &&
         sets_.resolve(table_[number].set) == HolderSets::kEmpty) {
    const std::uint32_t parent = table_[number].parent;
    const bool counted = parent != kNone && table_.too_many_children(parent);
    sets_.drop_entry(table_[number].set);
    table_.erase(number);
    if (counted && table_[parent].children.none()) {
      // Nobody walked its children: who had the last of them may still call it torn.
      for (Holder& holder : holders_) holder.torn.erase(table_[parent].hash());
    }
    number = parent;
  }
}

// Inside: bounds

std::size_t PrefixIndex::bytes() const {
  std::size_t bytes = table_.memory_bytes() + sets_.memory_bytes() + others_bytes_ +
                      touched_.capacity() * sizeof(std::uint64_t) +
                      memo_.capacity() * sizeof(std::uint64_t);
  for (const Holder& holder : holders_) bytes += sizeof(Holder) + holder.torn.memory_bytes();
  return bytes;
}

// Before an entry is made: as long as it does not fit, leaves go. False: there is none that may.
bool PrefixIndex::make_room() {
  const auto many = [&] { return table_.size() >= EntryIndex::kNumbersMax; };
  while (!has_room()) {
    if (!many() && table_.memory_bytes() + table_.bytes_to_grow() <= bytes_max_ / 8 * 6) {
      table_.grow();
      return true;
    }
    // Some more than needed, so that what comes next does not all pass here.
    std::size_t gone = 0;
    while ((many() || !table_.sparse()) && gone < 64 + table_.size() / 16 && evict_one()) gone++;
    table_.clean();
    if (gone == 0 && !has_room()) return false;
  }
  return true;
}

void PrefixIndex::bound_sets() {
  while (sets_.size() > 64 && sets_.bytes_used() > bytes_max_ / 8 && evict_one()) {
  }
}

// The hand goes round: what was stored or found since it came by gets one more round.
bool PrefixIndex::evict_one() {
  const auto may_go = [this](std::uint32_t number) {
    const bool touched = (touched_[number / 64] >> (number % 64) & 1) != 0;
    return !touched && !table_[number].free() && number != pinned_ &&
           table_[number].children.none();
  };
  // What went last was often the end of a chain, and above it is the next one: an old chain takes
  // one round of the hand, not one a block. So marks go in the middle of a chain, too.
  std::uint32_t number = above_;
  bool found = number != kNone && may_go(number);
  for (std::uint64_t step = 0; !found && step < 2ull * table_.high(); step++) {
    // Backwards: the parent of an end that goes was mostly made before it, and is an end now.
    hand_ = hand_ == 0 || hand_ > table_.high() ? table_.high() - 1 : hand_ - 1;
    number = hand_;
    found = may_go(number);
    touched_[number / 64] &= ~(std::uint64_t{1} << (number % 64));
  }
  if (!found) return false;
  const PrefixEntry& entry = table_[number];
  above_ = entry.parent;
  const auto words = sets_.words(sets_.resolve(entry.set));
  std::vector<std::uint32_t> holding;
  for (std::size_t w = 0; w < words.size(); w++) {
    for (std::uint64_t rest = words[w]; rest != 0; rest &= rest - 1) {
      holding.push_back(static_cast<std::uint32_t>(w * 64 + std::countr_zero(rest)));
    }
  }
  for (const std::uint32_t holder : holding) take(number, holder);
  free_unheld(number);
  evicted_++;
  return true;
}

// After a drop, entries that nobody holds are found bit by bit; forwarded sets get their new
// number.
void PrefixIndex::sweep(std::uint32_t steps) {
  for (; steps > 0 && sweep_left_ > 0; steps--, sweep_left_--) {
    sweep_at_ = sweep_at_ + 1 >= table_.high() ? 0 : sweep_at_ + 1;
    PrefixEntry& entry = table_[sweep_at_];
    if (entry.free()) continue;
    const std::uint32_t set = sets_.resolve(entry.set);
    sets_.move_entry(entry.set, set);
    entry.set = set;
    free_unheld(sweep_at_);
  }
}

}  // namespace moonpool
