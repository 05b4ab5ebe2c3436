// Windows: memory of one object, lent to the thread that moves its bytes.
#include "segment_agent.hpp"

#include <algorithm>

#include "segment_agent_detail.hpp"
#include "segment_slot.hpp"

namespace moonpool {

Window SegmentAgent::open_read(std::uint32_t slot, std::uint64_t generation, std::uint64_t offset,
                               std::uint64_t length) {
  const std::unique_lock lock = enter();
  const std::uint64_t valid_until = superblock_->valid_until_ns.load();
  if (valid_until != 0 && static_cast<std::uint64_t>(boottime_ns()) > valid_until) {
    return {Status::kExpired, 0, 0, {}};
  }
  return window(slot, generation, SlotState::kSealed, offset, length);
}

Window SegmentAgent::open_write(std::uint32_t slot, std::uint64_t generation, std::uint64_t offset,
                                std::uint64_t length) {
  const std::unique_lock lock = enter();
  return window(slot, generation, SlotState::kWriting, offset, length);
}

Status SegmentAgent::close_read(std::uint32_t slot, std::uint64_t generation) {
  return close_window(slot, generation, SlotState::kSealed);
}

Status SegmentAgent::close_write(std::uint32_t slot, std::uint64_t generation) {
  return close_window(slot, generation, SlotState::kWriting);
}

bool SegmentAgent::still(std::uint32_t slot, std::uint64_t generation, SlotState state) const {
  return slots_[slot].word.load(std::memory_order_acquire) == slot_word(generation, state);
}

std::optional<std::uint32_t> SegmentAgent::tenant_of(std::uint32_t slot,
                                                     std::uint64_t generation) const {
  const std::unique_lock lock = enter();
  if (slot >= geometry_.slots) return std::nullopt;
  const std::uint64_t word = slots_[slot].word.load();
  if (word_generation(word) != generation &&
      word != slot_word(generation + 1, SlotState::kRetired)) {
    return std::nullopt;
  }
  return slots_[slot].tenant;
}

Window SegmentAgent::window(std::uint32_t index, std::uint64_t generation, SlotState state,
                            std::uint64_t offset, std::uint64_t length) {
  if (index >= geometry_.slots) return {Status::kNotFound, 0, 0, {}};
  const Slot& slot = slots_[index];
  if (slot.word.load() != slot_word(generation, state)) return {Status::kMoved, 0, 0, {}};
  Window open{Status::kOk, slot.crc, slot.size, {}, slot.tenant};
  if (offset > slot.size) return {Status::kBounds, slot.crc, slot.size, {}};
  if (length == kWholeObject) length = slot.size - offset;
  if (length > slot.size - offset) return {Status::kBounds, slot.crc, slot.size, {}};
  Layout layout;
  if (!layout.load(slot, data_, geometry_.data_bytes, slot.size)) {
    return {Status::kInternal, slot.crc, slot.size, {}};
  }
  layout.pieces(data_, offset, length,
                [&](std::byte* data, std::uint64_t bytes) { open.parts.push_back({data, bytes}); });
  ++windows_[index];
  ++windows_open_;
  return open;
}

Status SegmentAgent::close_window(std::uint32_t index, std::uint64_t generation, SlotState state) {
  const std::unique_lock lock = enter();
  if (index >= geometry_.slots || windows_[index] == 0) return Status::kInternal;
  --windows_[index];
  --windows_open_;
  return slots_[index].word.load() == slot_word(generation, state) ? Status::kOk : Status::kMoved;
}

}  // namespace moonpool
