#include "engine_feed.hpp"

#include <algorithm>
#include <cstring>

#include "block_hash.hpp"

namespace moonpool {
namespace {

constexpr std::size_t kAliasShare = 16;  // own names of blocks take at most such a part of the cap

std::uint64_t add_text(std::uint64_t seed, std::uint64_t tag, std::string_view text) {
  if (text.empty()) return seed;
  seed = mix64(seed ^ mix64(tag));
  for (std::size_t at = 0; at < text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, text.size() - at));
    seed = mix64(seed ^ word);
  }
  return mix64(seed ^ text.size());
}

}  // namespace

std::uint64_t prefix_seed(std::string_view model, std::string_view space,
                          std::string_view adapter) {
  return prefix_seed(add_text(0, 1, model), space, adapter);
}

std::uint64_t prefix_seed(std::uint64_t model_seed, std::string_view space,
                          std::string_view adapter) {
  return add_text(add_text(model_seed, 2, space), 3, adapter);
}

std::uint64_t group_seed(std::uint64_t seed, std::uint64_t group) {
  return group == 0 ? seed : mix64(seed ^ mix64(group + 4));
}

std::size_t EngineFeed::store_soon(std::uint32_t place, std::uint32_t slot,
                                   const EngineBlocks& blocks) {
  const std::lock_guard lock(index_.mutex_);
  settle_pending();
  std::uint64_t before = blocks.seed;
  if (blocks.parent != 0) {
    const std::uint64_t* const own = own_of(place, blocks.parent);
    if (own == nullptr) {
      wait(place, slot, blocks);
      return blocks.keys.size();
    }
    before = *own;
  }
  pending_.there = true;
  pending_.first = blocks.parent == 0;
  pending_.place = place;
  pending_.slot = slot;
  pending_.before = before;
  pending_.keys.assign(blocks.keys.begin(), blocks.keys.end());
  hash(pending_.keys, blocks.contents, before, pending_.hashes);
  return 0;
}

void EngineFeed::settle() {
  const std::lock_guard lock(index_.mutex_);
  settle_pending();
}

void EngineFeed::settle_pending() {
  if (!pending_.there) return;
  pending_.there = false;
  store_known(pending_);
  if (!waiting_.empty()) wake(pending_.keys);
  account();
}

std::size_t EngineFeed::move(std::uint32_t place, std::uint32_t slot,
                             std::span<const std::uint64_t> keys) {
  const std::lock_guard lock(index_.mutex_);
  settle_pending();
  const std::uint32_t holder = index_.make_holder(place, slot);
  std::size_t unknown = 0;
  for (const std::uint64_t key : keys) {
    const std::uint64_t* const own = own_of(place, key);
    const std::uint32_t number = own == nullptr ? index_.kNone : index_.table_.find(*own);
    if (number == index_.kNone) {
      unknown++;
    } else {
      index_.give(number, holder);
    }
  }
  return unknown;
}

std::size_t EngineFeed::remove(std::uint32_t place, std::uint32_t slot,
                               std::span<const std::uint64_t> keys) {
  const std::lock_guard lock(index_.mutex_);
  settle_pending();
  const std::uint32_t holder = index_.holder_of(place, slot);
  index_.sweep(64);
  std::size_t held = 0;
  for (const std::uint64_t key : keys) index_.table_.ask_engine(key);
  for (const std::uint64_t key : keys) {
    // The engine may have used one name for two blocks; of either nothing is known any more.
    if (place < aliases_.size()) {
      if (const std::uint64_t* own = aliases_[place].find(key)) {
        const std::uint64_t hash = *own;
        aliases_[place].erase(key);
        alias_count_--;
        if (holder != index_.kNone) held += index_.remove_one(holder, hash);
        if (slot == kDevice) index_.remove_guess(place, hash);
      }
    }
    const std::uint32_t number = index_.table_.find_engine(key);
    if (number != index_.kNone && holder != index_.kNone) {
      const std::uint64_t hash = index_.table_[number].hash();
      held += index_.remove_one(holder, hash);
      if (slot == kDevice) index_.remove_guess(place, hash);
    } else if (const std::uint64_t* waits = orphan_of_.find(at_place(key, place))) {
      for (std::uint64_t& one : orphans_[*waits - first_orphan_].keys) {
        if (one == key) one = 0;
      }
      orphan_of_.erase(at_place(key, place));
    }
  }
  return held;
}

RangeDigests EngineFeed::digest(std::uint32_t place, std::uint32_t slot,
                                std::uint64_t domain) const {
  const std::lock_guard lock(index_.mutex_);
  RangeDigests found;
  each_name(place, index_.holder_of(place, slot), domain,
            [&](std::uint32_t, std::uint64_t name) { add_name(found, name); });
  return found;
}

std::size_t EngineFeed::remove_ranges(std::uint32_t place, std::uint32_t slot, std::uint64_t domain,
                                      const RangeMarks& ranges) {
  const std::lock_guard lock(index_.mutex_);
  settle_pending();
  const std::uint32_t holder = index_.holder_of(place, slot);
  std::vector<std::uint64_t> hashes;
  each_name(place, holder, domain, [&](std::uint32_t number, std::uint64_t name) {
    if (ranges[range_of(name)] == 0) return;
    hashes.push_back(index_.table_[number].hash());
    if (place < aliases_.size() && aliases_[place].erase(name ^ domain)) alias_count_--;
  });
  for (const std::uint64_t hash : hashes) index_.remove_one(holder, hash);
  return hashes.size();
}

// visit(entry, name) for all that the holder has. It may erase names.
template <class Visit>
void EngineFeed::each_name(std::uint32_t place, std::uint32_t holder, std::uint64_t domain,
                           Visit visit) const {
  if (holder == index_.kNone || index_.holders_[holder].count == 0) return;
  FlatMap<std::uint64_t> own_names;  // by own hash
  if (place < aliases_.size()) {
    aliases_[place].each([&](std::uint64_t key, std::uint64_t own) { own_names.at(own) = key; });
  }
  for (std::uint32_t number = 0; number < index_.table_.high(); number++) {
    const PrefixEntry& entry = index_.table_[number];
    if (entry.free() || !index_.holds(number, holder)) continue;
    const std::uint64_t* const own_name = own_names.find(entry.hash());
    const std::uint64_t key = own_name == nullptr ? entry.engine() : *own_name;
    visit(number, key == 0 ? entry.hash() : key ^ domain);
  }
}

void EngineFeed::forget(std::uint32_t place) {
  const std::lock_guard lock(index_.mutex_);
  settle_pending();
  for (Orphan& orphan : orphans_) orphan.gone |= orphan.place == place;
  if (place < aliases_.size()) {
    alias_count_ -= aliases_[place].size();
    aliases_[place].clear();
  }
  account();
}

std::size_t EngineFeed::orphan_blocks() const {
  const std::lock_guard lock(index_.mutex_);
  return orphan_blocks_;
}

std::size_t EngineFeed::aliases() const {
  const std::lock_guard lock(index_.mutex_);
  return alias_count_;
}

// The own hash of a block that the worker, or any other, has named so.
const std::uint64_t* EngineFeed::own_of(std::uint32_t place, std::uint64_t key) {
  if (place < aliases_.size()) {
    if (const std::uint64_t* own = aliases_[place].find(key)) return own;
  }
  const std::uint32_t number = index_.table_.find_engine(key);
  if (number == index_.kNone) return nullptr;
  own_ = index_.table_[number].hash();
  return &own_;
}

// The chain after `before`, the own hash of the block before or the seed; and what the index has in
// these places is asked for.
void EngineFeed::hash(std::span<const std::uint64_t> keys, std::span<const std::uint64_t> contents,
                      std::uint64_t before, std::vector<std::uint64_t>& hashes) const {
  hashes.resize(keys.size());
  for (std::size_t i = 0; i < keys.size(); i++) {
    before = hashes[i] = chain_step(before, contents[i]);
    index_.table_.ask(before);
    index_.table_.ask_engine(keys[i]);
  }
}

void EngineFeed::store_known(const Pending& run) {
  index_.store_run(index_.make_holder(run.place, run.slot), run.hashes, run.first ? 0 : run.before);
  for (std::size_t i = 0; i < index_.numbers_.size(); i++) {
    name(run.place, index_.numbers_[i], run.hashes[i], run.keys[i]);
  }
}

void EngineFeed::name(std::uint32_t place, std::uint32_t number, std::uint64_t hash,
                      std::uint64_t key) {
  if (key == 0) return;
  const bool room = index_.table_.can_map() || index_.make_room();
  const PrefixEntry& entry = index_.table_[number];
  if (entry.free() || entry.hash() != hash || entry.engine() == key) return;  // gone, or known
  std::size_t cell = 0;
  if (room && entry.engine() == 0 && index_.table_.find_engine(key, cell) == index_.kNone) {
    index_.table_.map_engine(number, key, cell);
    return;
  }
  if (alias_count_ * 48 > index_.bytes_max_ / kAliasShare) {
    // Without its name nobody could ever take the block back.
    for (const std::uint32_t holder : index_.places_[place]) {
      if (holder != index_.kNone) index_.remove_one(holder, hash);
    }
    return;
  }
  if (aliases_.size() <= place) aliases_.resize(place + 1);
  const std::size_t before = aliases_[place].size();
  aliases_[place].at(key) = hash;
  alias_count_ += aliases_[place].size() - before;
}

// Orphans

void EngineFeed::wait(std::uint32_t place, std::uint32_t slot, const EngineBlocks& blocks) {
  while (!orphans_.empty() && orphan_blocks_ + blocks.keys.size() > kOrphanBlocks) {
    end_first_orphan();
  }
  if (blocks.keys.size() > kOrphanBlocks) {
    orphans_lost_ += blocks.keys.size();
    return;
  }
  const std::uint64_t number = first_orphan_ + orphans_.size();
  orphans_.push_back({place,
                      slot,
                      blocks.parent,
                      {blocks.keys.begin(), blocks.keys.end()},
                      {blocks.contents.begin(), blocks.contents.end()}});
  orphan_blocks_ += blocks.keys.size();
  waiting_.at(blocks.parent).push_back(number);
  for (const std::uint64_t key : blocks.keys) orphan_of_.at(at_place(key, place)) = number;
  account();
}

// The oldest one's parent did not come.
void EngineFeed::end_first_orphan() {
  Orphan& orphan = orphans_.front();
  orphan_blocks_ -= orphan.keys.size();
  if (!orphan.gone) orphans_lost_ += orphan.keys.size();
  if (auto* const numbers = waiting_.find(orphan.parent)) {
    std::erase(*numbers, first_orphan_);
    if (numbers->empty()) waiting_.erase(orphan.parent);
  }
  for (const std::uint64_t key : orphan.keys) {
    const std::uint64_t* const number = orphan_of_.find(at_place(key, orphan.place));
    if (number != nullptr && *number == first_orphan_) {
      orphan_of_.erase(at_place(key, orphan.place));
    }
  }
  orphans_.pop_front();
  first_orphan_++;
}

// These blocks are known now, and so is what waited for them, and what waited for that.
void EngineFeed::wake(std::vector<std::uint64_t> parents) {
  while (!parents.empty() && !waiting_.empty()) {
    const std::uint64_t parent = parents.back();
    parents.pop_back();
    const auto* const found = waiting_.find(parent);
    if (found == nullptr) continue;
    const std::vector<std::uint64_t> numbers = *found;
    waiting_.erase(parent);
    for (const std::uint64_t number : numbers) {
      Orphan& orphan = orphans_[number - first_orphan_];
      if (orphan.gone) continue;
      orphan.gone = true;
      const std::uint64_t* const own = own_of(orphan.place, parent);
      if (own == nullptr) continue;
      Pending woken{true, false, orphan.place, orphan.slot, *own, orphan.keys, {}};
      hash(orphan.keys, orphan.contents, *own, woken.hashes);
      store_known(woken);
      for (std::size_t i = 0; i < orphan.keys.size(); i++) {
        if (orphan.keys[i] != 0) {
          parents.push_back(orphan.keys[i]);
        } else if (const auto h = index_.holder_of(orphan.place, orphan.slot); h != index_.kNone) {
          index_.remove_one(h, woken.hashes[i]);
        }
      }
    }
  }
  while (!orphans_.empty() && orphans_.front().gone) end_first_orphan();
}

void EngineFeed::account() {
  std::size_t bytes = waiting_.memory_bytes() + orphan_of_.memory_bytes() +
                      orphan_blocks_ * 2 * sizeof(std::uint64_t) +
                      orphans_.size() * (sizeof(Orphan) + sizeof(std::uint64_t));
  if (alias_count_ != 0) {
    for (const auto& names : aliases_) bytes += names.memory_bytes();
  }
  index_.others_bytes_ = bytes;
}

}  // namespace moonpool
