// From claim to seal: memory is granted to a writer, and becomes an object.
#include "segment_agent.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "crc.hpp"
#include "segment_agent_detail.hpp"
#include "segment_slot.hpp"

namespace moonpool {

void SegmentAgent::claim(std::span<const ClaimRecord> records, std::string_view blob,
                         std::uint64_t term, std::uint32_t row, std::uint64_t row_epoch,
                         std::span<Claimed> out, std::int64_t now_ns) {
  std::size_t text = 0;
  for (const ClaimRecord& record : records) text += std::size_t{record.key_len} + record.parent_len;
  if (text != blob.size() || out.size() != records.size()) {
    throw std::invalid_argument("the claims' keys take " + std::to_string(text) +
                                " bytes, the blob has " + std::to_string(blob.size()));
  }
  const std::unique_lock lock = enter();
  Status refusal = Status::kOk;
  if (term < term_of(*superblock_)) refusal = Status::kStaleTerm;
  if (row != kNoRow && !row_alive(row, row_epoch)) refusal = Status::kRefused;
  bool drained = false;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ClaimRecord& record = records[i];
    const std::string_view key = blob.substr(0, record.key_len);
    const std::string_view parent = blob.substr(record.key_len, record.parent_len);
    blob.remove_prefix(key.size() + parent.size());
    if (refusal != Status::kOk) {
      out[i] = {refusal, 0, 0};
      continue;
    }
    out[i] = claim_one(record, key, parent, row, row_epoch);
    const bool full = out[i].status == Status::kNoSpace || out[i].status == Status::kNoSlot;
    if (full && !drained) {
      drained = true;
      if (drain_locked(resolve(now_ns)) > 0)
        out[i] = claim_one(record, key, parent, row, row_epoch);
    }
  }
}

Claimed SegmentAgent::claim_one(const ClaimRecord& record, std::string_view key,
                                std::string_view parent, std::uint32_t row,
                                std::uint64_t row_epoch) {
  if (key.empty() || key.size() > kKeyBytesMax || parent.size() > kKeyBytesMax ||
      record.size > geometry_.capacity_bytes) {
    return {Status::kTooBig, 0, 0};
  }
  if (free_slots_.empty()) return {Status::kNoSlot, 0, 0};
  const std::uint32_t index = free_slots_.back();
  Slot& slot = slots_[index];
  if (!place(slot, record.size, key, parent)) return {Status::kNoSpace, 0, 0};
  free_slots_.pop_back();
  slot.term = record.term;
  slot.seq = record.seq;
  slot.size = record.size;
  slot.expiry_ms = record.expiry_ms;
  slot.crc = 0;
  slot.tenant = record.tenant;
  slot.last_used = record.last_used;
  slot.writer_row = row;
  slot.writer_epoch = row_epoch;
  slot.writer_open = 1;
  slot.hold_until_ns = 0;
  slot.flags = record.flags;
  slot.replicas = record.replicas;
  slot.pin = record.pin;
  if (row != kNoRow && row_writes_[row]++ == 0) row_epochs_[row] = row_epoch;
  versions_.insert(version_hash(slot.term, slot.seq), index);
  const std::uint64_t generation = word_generation(slot.word.load()) + 1;
  set_word(index, slot_word(generation, SlotState::kWriting));
  return {Status::kOk, index, generation};
}

// Chooses extents and side pieces and writes them, with the text, into a free slot.
bool SegmentAgent::place(Slot& slot, std::uint64_t size, std::string_view key,
                         std::string_view parent) {
  std::vector<Extent> extents, pieces;
  if (!allocator_.allocate(size, kExtentsMax, extents)) return false;
  const std::string text = std::string(key).append(parent);
  const auto count = static_cast<std::uint32_t>(extents.size());
  const SideContents side = side_contents(count, text.size());
  std::size_t covered = 0;
  while (covered < side.bytes() && pieces.size() < kSidePiecesMax) {
    const std::optional<Extent> piece =
        allocator_.allocate_up_to(side.bytes() - covered + sizeof(SidePiece));
    if (!piece) break;
    pieces.push_back(*piece);
    covered += piece->bytes - sizeof(SidePiece);
  }
  if (covered < side.bytes()) {
    for (const Extent& extent : extents) allocator_.free(extent);
    for (const Extent& piece : pieces) allocator_.free(piece);
    return false;
  }
  std::string stream;
  if (side.extent_bytes > 0) {
    stream.append(reinterpret_cast<const char*>(extents.data()), side.extent_bytes);
  }
  if (side.text_bytes > 0) stream.append(text);
  write_side(pieces, stream);
  // A reader with an old generation may look at these fields: they come after the word's last
  // change.
  std::atomic_ref<std::uint32_t>(slot.extent_count).store(count, std::memory_order_seq_cst);
  std::copy_n(extents.begin(), std::min<std::size_t>(count, kInlineExtents), slot.extents);
  slot.side = pieces.empty() ? Extent{} : pieces.front();
  slot.key_bytes = static_cast<std::uint16_t>(key.size());
  slot.parent_bytes = static_cast<std::uint16_t>(parent.size());
  if (text.size() <= kInlineText) std::copy(text.begin(), text.end(), slot.text);
  return true;
}

void SegmentAgent::write_side(const std::vector<Extent>& pieces, std::string_view stream) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    SidePiece head;
    if (i + 1 < pieces.size()) {
      head.next_offset = pieces[i + 1].offset;
      head.next_bytes = static_cast<std::uint32_t>(pieces[i + 1].bytes);
    }
    const std::size_t bytes = std::min<std::size_t>(stream.size(), pieces[i].bytes - sizeof head);
    head.bytes = static_cast<std::uint32_t>(bytes);
    std::memcpy(data_ + pieces[i].offset, &head, sizeof head);
    std::memcpy(data_ + pieces[i].offset + sizeof head, stream.data(), bytes);
    stream.remove_prefix(bytes);
  }
}

void SegmentAgent::seal(std::span<const std::uint32_t> slots,
                        std::span<const std::uint64_t> generations,
                        std::span<const std::uint32_t> crcs, std::uint32_t flags,
                        std::uint64_t term, std::span<Status> out) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::optional<std::uint32_t> crc;
    if ((flags & kSealComputesCrc) == 0) {
      crc = crcs[i];
    } else if (const Window bytes = open_write(slots[i], generations[i], 0, kWholeObject);
               bytes.status == Status::kOk) {
      crc = 0;
      for (const Part& part : bytes.parts) crc = crc32c(part.data, part.bytes, *crc);
      close_write(slots[i], generations[i]);
    }
    const std::unique_lock lock = enter();
    out[i] =
        term < term_of(*superblock_) ? Status::kStaleTerm : seal_one(slots[i], generations[i], crc);
  }
}

// Without a CRC only a repeated request can succeed.
Status SegmentAgent::seal_one(std::uint32_t index, std::uint64_t generation,
                              std::optional<std::uint32_t> crc) {
  if (index >= geometry_.slots) return Status::kNotFound;
  Slot& slot = slots_[index];
  const std::uint64_t word = slot.word.load();
  if (word == slot_word(generation, SlotState::kSealed)) {
    return !crc || slot.crc == *crc ? Status::kOk : Status::kMoved;
  }
  if (word != slot_word(generation, SlotState::kWriting) || !crc) return Status::kMoved;
  if (windows_[index] > 0) return Status::kBusy;
  slot.crc = *crc;
  set_word(index, slot_word(generation, SlotState::kSealed));
  close_writer(slot);
  note(ChangeKind::kSealed, index);
  return Status::kOk;
}

void SegmentAgent::abort(std::span<const std::uint32_t> slots,
                         std::span<const std::uint64_t> generations, std::span<Status> out) {
  const std::unique_lock lock = enter();
  for (std::size_t i = 0; i < slots.size(); ++i) out[i] = abort_one(slots[i], generations[i]);
}

Status SegmentAgent::abort_one(std::uint32_t index, std::uint64_t generation) {
  if (index >= geometry_.slots) return Status::kNotFound;
  Slot& slot = slots_[index];
  const std::uint64_t word = slot.word.load();
  if (word == slot_word(generation + 1, SlotState::kRetired) && slot.writer_open != 0) {
    close_writer(slot);  // it expired before; now the writer is done with the memory
    return Status::kOk;
  }
  if (word != slot_word(generation, SlotState::kWriting)) return Status::kMoved;
  if (windows_[index] == 0) {
    free_slot(index);
  } else {
    close_writer(slot);
    retire_slot(index, 0);
  }
  return Status::kOk;
}

std::uint64_t SegmentAgent::expire(std::span<const std::uint64_t> terms,
                                   std::span<const std::uint64_t> seqs) {
  const std::unique_lock lock = enter();
  std::uint64_t expired = 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    versions_.find(version_hash(terms[i], seqs[i]), [&](std::uint32_t index) {
      const Slot& slot = slots_[index];
      const SlotState state = word_state(slot.word.load());
      const bool alive = state == SlotState::kWriting || state == SlotState::kSealed;
      if (alive && slot.term == terms[i] && slot.seq == seqs[i]) {
        retire_slot(index, 0);
        ++expired;
      }
      return false;
    });
  }
  return expired;
}

void SegmentAgent::retire(std::span<const std::uint32_t> slots,
                          std::span<const std::uint64_t> generations, std::uint64_t term,
                          std::int64_t hold_ms, std::span<Status> out, std::int64_t now_ns) {
  const std::unique_lock lock = enter();
  const std::int64_t hold_until = hold_ms > 0 ? resolve(now_ns) + hold_ms * 1'000'000 : 0;
  const bool stale = term < term_of(*superblock_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (stale) {
      out[i] = Status::kStaleTerm;
    } else if (slots[i] >= geometry_.slots) {
      out[i] = Status::kNotFound;
    } else if (slots_[slots[i]].word.load() != slot_word(generations[i], SlotState::kSealed)) {
      out[i] = Status::kMoved;
    } else {
      retire_slot(slots[i], hold_until);
      out[i] = Status::kOk;
    }
  }
}

}  // namespace moonpool
