// Adoption: what a dead owner left is checked and brought to a consistent state.
#include "segment_agent.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "segment_agent_detail.hpp"
#include "segment_slot.hpp"

namespace moonpool {

std::shared_ptr<SegmentAgent> SegmentAgent::adopt(const std::string& path, bool populate) {
  OwnedFd fd = open_segment(path, true);
  if (!lock_byte(fd.get(), kOwnerLockByte)) {
    throw SegmentLocked(path + ": owned by living process " +
                        std::to_string(inspect_segment(path).owner_pid));
  }
  struct stat opened {
  }, named{};
  if (::fstat(fd.get(), &opened) != 0 || ::stat(path.c_str(), &named) != 0 ||
      opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) {
    throw SegmentFormat(path + ": removed while it was adopted");
  }
  const Geometry geometry = read_geometry(fd.get(), path);
  std::shared_ptr<SegmentAgent> agent(new SegmentAgent(std::move(fd), geometry, path));
  if (populate) agent->map_.populate(true);
  agent->rebuild();
  return agent;
}

// Brings the file of a dead owner to a consistent state: see the header's table for who may still
// hold what. Nothing read here is trusted before it was checked.
void SegmentAgent::rebuild() {
  struct Claim {
    Extent extent;
    std::uint32_t slot;
  };
  superblock_->owner_pid = static_cast<std::uint32_t>(::getpid());
  // A crash may have come between a slot's change and its number: whoever follows must start again.
  superblock_->sequence.fetch_add(1);
  changes_from_ = superblock_->sequence.load();
  allocator_.reset(geometry_.data_bytes);
  std::vector<Claim> claims;
  std::vector<bool> broken(geometry_.slots, false);
  std::vector<Extent> extents, pieces;
  for (std::uint32_t i = 0; i < geometry_.slots; ++i) {
    if (word_state(slots_[i].word.load()) == SlotState::kFree) continue;
    if (!load_slot(i, extents, pieces)) {
      broken[i] = true;
      continue;
    }
    for (const Extent& extent : extents) claims.push_back({extent, i});
    for (const Extent& piece : pieces) claims.push_back({piece, i});
  }
  std::sort(claims.begin(), claims.end(),
            [](const Claim& a, const Claim& b) { return a.extent.offset < b.extent.offset; });
  // Of two slots that name the same bytes neither can be believed.
  std::size_t furthest = 0;
  for (std::size_t i = 1; i < claims.size(); ++i) {
    const Extent& before = claims[furthest].extent;
    if (claims[i].extent.offset < before.offset + before.bytes) {
      broken[claims[i].slot] = broken[claims[furthest].slot] = true;
    }
    const Extent& now = claims[i].extent;
    if (now.offset + now.bytes > before.offset + before.bytes) furthest = i;
  }
  std::vector<Extent> used;
  for (const Claim& claim : claims) {
    if (!broken[claim.slot]) used.push_back(claim.extent);
  }
  if (!allocator_.rebuild(geometry_.data_bytes, std::move(used))) {
    throw SegmentFormat("a segment's extents overlap after they were checked");
  }
  for (std::uint32_t i = geometry_.slots; i-- > 0;) {
    Slot& slot = slots_[i];
    const std::uint64_t word = slot.word.load();
    SlotState state = word_state(word);
    if (broken[i]) {
      slot.word.store(slot_word(word_generation(word) + 1, SlotState::kFree));
      ++adopted_.broken;
      state = SlotState::kFree;
    }
    ++counts_[index_of(state)];
    if (state == SlotState::kFree) {
      free_slots_.push_back(i);
      continue;
    }
    bytes_[index_of(state)] += slot.size;
    versions_.insert(version_hash(slot.term, slot.seq), i);
    if (state == SlotState::kSealed) slot.writer_open = 0;
    if (slot.writer_open != 0 && slot.writer_row < geometry_.rows) ++row_writes_[slot.writer_row];
    if (state == SlotState::kRetired) retired_.push_back(i);
  }
  for (std::uint32_t i = 0; i < geometry_.slots; ++i) {
    if (word_state(slots_[i].word.load()) != SlotState::kWriting) continue;
    if (writer_alive(slots_[i])) {
      ++adopted_.writing;
    } else {
      free_slot(i);
      ++adopted_.freed;
    }
  }
  adopted_.sealed = counts_[index_of(SlotState::kSealed)];
  adopted_.retired = counts_[index_of(SlotState::kRetired)];
  drain_locked(boottime_ns());
}

bool SegmentAgent::load_slot(std::uint32_t index, std::vector<Extent>& extents,
                             std::vector<Extent>& pieces) const {
  const Slot& slot = slots_[index];
  extents.clear();
  pieces.clear();
  if ((slot.word.load() & 7) > static_cast<std::uint64_t>(SlotState::kRetired)) return false;
  if (slot.key_bytes > kKeyBytesMax || slot.parent_bytes > kKeyBytesMax) return false;
  if (slot.extent_count > kExtentsMax || slot.size > geometry_.data_bytes) return false;
  const std::size_t text = std::size_t{slot.key_bytes} + slot.parent_bytes;
  const std::size_t side = side_contents(slot.extent_count, text).bytes();
  std::vector<std::byte> stream;
  if ((side == 0) != (slot.side.bytes == 0)) return false;
  if (!read_side(slot, data_, geometry_.data_bytes, side, stream, &pieces)) return false;
  return read_extents(slot, data_, geometry_.data_bytes, slot.size, extents);
}

}  // namespace moonpool
