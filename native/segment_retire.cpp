// Retire, drain, return; and the slot's word, which decides all of them.
#include "segment_agent.hpp"

#include <algorithm>

#include "segment_agent_detail.hpp"

namespace moonpool {

// The only place where a word changes; sequentially consistent, so that a pin stored before the
// change is seen by the scan after it, and a pin stored later sees the change.
void SegmentAgent::set_word(std::uint32_t index, std::uint64_t word) {
  Slot& slot = slots_[index];
  const std::size_t before = index_of(word_state(slot.word.load()));
  const std::size_t after = index_of(word_state(word));
  --counts_[before];
  ++counts_[after];
  if (before != index_of(SlotState::kFree)) bytes_[before] -= slot.size;
  if (after != index_of(SlotState::kFree)) bytes_[after] += slot.size;
  slot.word.store(word, std::memory_order_seq_cst);
}

void SegmentAgent::close_writer(Slot& slot) {
  if (slot.writer_open == 0) return;
  slot.writer_open = 0;
  if (slot.writer_row < geometry_.rows) --row_writes_[slot.writer_row];
}

void SegmentAgent::retire_slot(std::uint32_t index, std::int64_t hold_until_ns) {
  Slot& slot = slots_[index];
  slot.hold_until_ns = hold_until_ns;
  set_word(index, slot_word(word_generation(slot.word.load()) + 1, SlotState::kRetired));
  retired_.push_back(index);
  note(ChangeKind::kRetired, index);
}

void SegmentAgent::free_slot(std::uint32_t index) {
  Slot& slot = slots_[index];
  std::vector<Extent> extents, pieces;
  // The fields are the agent's own and were checked when they came: they cannot be damaged here
  // unless somebody wrote over the tables, and then the extents are lost until the next adoption.
  const bool whole = load_slot(index, extents, pieces);
  close_writer(slot);
  set_word(index, slot_word(word_generation(slot.word.load()), SlotState::kFree));
  if (whole) {
    for (const Extent& extent : extents) allocator_.free(extent);
    for (const Extent& piece : pieces) allocator_.free(piece);
  }
  versions_.erase(version_hash(slot.term, slot.seq), index);
  free_slots_.push_back(index);
  note(ChangeKind::kFreed, index);
}

std::uint64_t SegmentAgent::drain(std::int64_t now_ns) {
  const std::unique_lock lock = enter();
  return drain_locked(resolve(now_ns));
}

std::uint64_t SegmentAgent::drain_locked(std::int64_t now_ns) {
  std::uint64_t freed = reap_rows();
  if (retired_.empty()) return freed;
  std::vector<std::uint32_t> pinned;
  collect_pins(pinned);
  std::sort(pinned.begin(), pinned.end());
  std::vector<std::uint32_t> waiting;
  for (const std::uint32_t index : retired_) {
    const Slot& slot = slots_[index];
    const bool held = windows_[index] > 0 || slot.hold_until_ns > now_ns ||
                      std::binary_search(pinned.begin(), pinned.end(), index) ||
                      (slot.writer_open != 0 && writer_alive(slot));
    if (held) {
      waiting.push_back(index);
    } else {
      free_slot(index);
      ++freed;
    }
  }
  retired_ = std::move(waiting);
  return freed;
}

bool SegmentAgent::row_alive(std::uint32_t row, std::uint64_t epoch) const {
  return row < geometry_.rows && rows_[row].epoch.load() == epoch &&
         is_locked(fd_.get(), row_lock_byte(row));
}

// A writer without a row is this process; what it still touches, its open windows say.
bool SegmentAgent::writer_alive(const Slot& slot) const {
  return slot.writer_row != kNoRow && row_alive(slot.writer_row, slot.writer_epoch);
}

// Frees what dead clients were writing and clears their rows. Returns the slots freed.
std::uint64_t SegmentAgent::reap_rows() {
  std::uint64_t freed = 0;
  for (std::uint32_t row = 0; row < geometry_.rows; ++row) {
    ClientRow& client = rows_[row];
    if (row_writes_[row] > 0) freed += free_dead_writes(row);
    if (client.pid.load() == 0 || is_locked(fd_.get(), row_lock_byte(row))) continue;
    // Under the row's own lock, so that no new client takes it meanwhile.
    if (!lock_byte(fd_.get(), row_lock_byte(row))) continue;
    for (auto& pin : client.pins) pin.store(0);
    client.pid.store(0);
    unlock_byte(fd_.get(), row_lock_byte(row));
  }
  return freed;
}

std::uint64_t SegmentAgent::free_dead_writes(std::uint32_t row) {
  const bool locked = is_locked(fd_.get(), row_lock_byte(row));
  const std::uint64_t epoch = rows_[row].epoch.load();
  if (locked && epoch == row_epochs_[row]) return 0;
  std::uint64_t freed = 0;
  for (std::uint32_t i = 0; i < geometry_.slots; ++i) {
    const Slot& slot = slots_[i];
    if (word_state(slot.word.load()) != SlotState::kWriting || slot.writer_row != row) continue;
    if (locked && slot.writer_epoch == epoch) continue;
    free_slot(i);
    ++freed;
  }
  if (locked) row_epochs_[row] = epoch;
  return freed;
}

void SegmentAgent::collect_pins(std::vector<std::uint32_t>& pinned) const {
  for (std::uint32_t row = 0; row < geometry_.rows; ++row) {
    const ClientRow& client = rows_[row];
    if (client.pid.load() == 0) continue;
    const std::size_t before = pinned.size();
    for (const auto& entry : client.pins) {
      if (const std::uint64_t pin = entry.load()) pinned.push_back(pin_slot(pin));
    }
    const bool any = pinned.size() != before;
    if (any && !is_locked(fd_.get(), row_lock_byte(row))) pinned.resize(before);
  }
}

}  // namespace moonpool
