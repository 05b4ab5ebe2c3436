// What the agent says about its segment: usage, inventory, changes, tombstones.
#include "segment_agent.hpp"

#include <algorithm>
#include <cstring>

#include "segment_agent_detail.hpp"
#include "segment_slot.hpp"

namespace moonpool {

SegmentUsage SegmentAgent::usage() {
  const std::unique_lock lock = enter();
  std::vector<std::uint32_t> pinned;
  collect_pins(pinned);
  return {allocator_.free_bytes(),
          allocator_.largest_free(),
          bytes_[index_of(SlotState::kWriting)],
          bytes_[index_of(SlotState::kSealed)],
          bytes_[index_of(SlotState::kRetired)],
          counts_[index_of(SlotState::kFree)],
          counts_[index_of(SlotState::kWriting)],
          counts_[index_of(SlotState::kSealed)],
          counts_[index_of(SlotState::kRetired)],
          pinned.size()};
}

void SegmentAgent::note(ChangeKind kind, std::uint32_t index) {
  const Slot& slot = slots_[index];
  const std::uint64_t sequence = superblock_->sequence.load() + 1;
  superblock_->sequence.store(sequence);
  changes_.push_back(
      {sequence, kind, index, word_generation(slot.word.load()), slot.term, slot.seq});
  if (changes_.size() <= kChangesMax) return;
  changes_from_ = changes_.front().sequence;
  changes_.pop_front();
}

namespace {

constexpr std::uint64_t kSlotsPerLock = 512;  // so that claims and reads go on in between

// One sealed slot's row; what is not sealed, or names no readable key, has none.
void append_slot(Inventory& out, const Slot& slot, std::uint64_t at, std::byte* data,
                 std::uint64_t data_bytes, std::string& text) {
  const std::uint64_t word = slot.word.load();
  if (word_state(word) != SlotState::kSealed) return;
  if (!read_text(slot, data, data_bytes, text)) return;
  out.slot.push_back(static_cast<std::uint32_t>(at));
  out.generation.push_back(word_generation(word));
  out.term.push_back(slot.term);
  out.seq.push_back(slot.seq);
  out.size.push_back(slot.size);
  out.crc.push_back(slot.crc);
  out.tenant.push_back(slot.tenant);
  out.last_used.push_back(slot.last_used);
  out.expiry_ms.push_back(slot.expiry_ms);
  out.replicas.push_back(slot.replicas);
  out.pin.push_back(slot.pin);
  out.keys.append(text, 0, slot.key_bytes);
  out.parents.append(text, slot.key_bytes);
  out.key_ends.push_back(static_cast<std::uint32_t>(out.keys.size()));
  out.parent_ends.push_back(static_cast<std::uint32_t>(out.parents.size()));
}

}  // namespace

Inventory SegmentAgent::inventory(std::uint64_t start_slot, std::uint64_t slots_max) {
  slots_max = std::min(slots_max, kInventorySlotsMax);
  Inventory out;
  std::uint64_t at = std::min<std::uint64_t>(start_slot, geometry_.slots);
  const std::uint64_t end = at + std::min<std::uint64_t>(slots_max, geometry_.slots - at);
  out.sequence = sequence();
  std::string text;
  while (at < end) {
    const std::unique_lock lock = enter();
    for (const std::uint64_t stop = std::min(end, at + kSlotsPerLock); at < stop; ++at) {
      append_slot(out, slots_[at], at, data_, geometry_.data_bytes, text);
    }
  }
  out.next_start = at;
  return out;
}

Inventory SegmentAgent::inventory_of(std::span<const std::uint32_t> slots) {
  Inventory out;
  out.sequence = sequence();
  out.next_start = geometry_.slots;
  std::string text;
  std::size_t at = 0;
  while (at < slots.size()) {
    const std::unique_lock lock = enter();
    for (const std::size_t stop = std::min(slots.size(), at + kSlotsPerLock); at < stop; ++at) {
      if (slots[at] >= geometry_.slots) continue;
      append_slot(out, slots_[slots[at]], slots[at], data_, geometry_.data_bytes, text);
    }
  }
  return out;
}

std::optional<std::vector<Change>> SegmentAgent::changes(std::uint64_t after_sequence,
                                                         std::size_t changes_max) {
  const std::unique_lock lock = enter();
  if (after_sequence < changes_from_ || after_sequence > superblock_->sequence.load()) {
    return std::nullopt;
  }
  const std::size_t skip = after_sequence - changes_from_;
  const std::size_t count = std::min(changes_max, changes_.size() - skip);
  const auto first = changes_.begin() + static_cast<std::ptrdiff_t>(skip);
  return std::vector<Change>(first, first + static_cast<std::ptrdiff_t>(count));
}

Status SegmentAgent::tombstone_add(std::span<const std::uint8_t, 16> hash, std::uint64_t term,
                                   std::uint64_t seq) {
  const std::unique_lock lock = enter();
  Tombstone* spare = nullptr;
  Tombstone* old = nullptr;
  for (std::uint32_t i = 0; i < geometry_.tombstones; ++i) {
    Tombstone& entry = tombstones_[i];
    if (entry.used.load() == 0) {
      if (spare == nullptr) spare = &entry;
    } else if (std::equal(hash.begin(), hash.end(), entry.hash)) {
      old = &entry;
    }
  }
  if (old != nullptr && std::pair(old->term, old->seq) >= std::pair(term, seq)) return Status::kOk;
  if (spare == nullptr) return Status::kBusy;
  // A crash between the two lines leaves both versions, of which `tombstones` reports the higher.
  std::copy(hash.begin(), hash.end(), spare->hash);
  spare->term = term;
  spare->seq = seq;
  spare->used.store(1);
  if (old != nullptr) old->used.store(0);
  return Status::kOk;
}

bool SegmentAgent::tombstone_remove(std::span<const std::uint8_t, 16> hash) {
  const std::unique_lock lock = enter();
  bool removed = false;
  for (std::uint32_t i = 0; i < geometry_.tombstones; ++i) {
    Tombstone& entry = tombstones_[i];
    if (entry.used.load() == 0 || !std::equal(hash.begin(), hash.end(), entry.hash)) continue;
    entry.used.store(0);
    removed = true;
  }
  return removed;
}

std::vector<TombstoneEntry> SegmentAgent::tombstones() {
  const std::unique_lock lock = enter();
  std::vector<TombstoneEntry> out;
  for (std::uint32_t i = 0; i < geometry_.tombstones; ++i) {
    const Tombstone& entry = tombstones_[i];
    if (entry.used.load() == 0) continue;
    TombstoneEntry copy{{}, entry.term, entry.seq};
    std::copy(std::begin(entry.hash), std::end(entry.hash), copy.hash);
    out.push_back(copy);
  }
  const auto order = [](const TombstoneEntry& a, const TombstoneEntry& b) {
    const int hashes = std::memcmp(a.hash, b.hash, sizeof a.hash);
    return hashes != 0 ? hashes < 0 : std::pair(a.term, a.seq) > std::pair(b.term, b.seq);
  };
  const auto same = [](const TombstoneEntry& a, const TombstoneEntry& b) {
    return std::memcmp(a.hash, b.hash, sizeof a.hash) == 0;
  };
  std::sort(out.begin(), out.end(), order);
  out.erase(std::unique(out.begin(), out.end(), same), out.end());
  return out;
}

}  // namespace moonpool
