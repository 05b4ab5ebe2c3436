#include "segment_agent.hpp"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "crc.hpp"
#include "segment_slot.hpp"

namespace moonpool {

namespace {

std::int64_t boottime_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

std::int64_t resolve(std::int64_t now_ns) { return now_ns == kNowNs ? boottime_ns() : now_ns; }

std::uint64_t version_hash(std::uint64_t term, std::uint64_t seq) {
  return mix64(mix64(term) ^ seq);
}

std::size_t index_of(SlotState state) { return static_cast<std::size_t>(state); }

std::uint64_t term_of(const Superblock& superblock) {
  return superblock.terms[superblock.term_index.load(std::memory_order_acquire) & 1].term;
}

}  // namespace

SegmentAgent::SegmentAgent(OwnedFd fd, const Geometry& geometry, std::optional<std::string> path)
    : fd_(std::move(fd)),
      geometry_(geometry),
      path_(std::move(path)),
      process_(process_number()),
      map_(fd_.get(), 0, geometry.file_bytes, true) {
  map_.advise_huge();
  std::byte* base = map_.data();
  superblock_ = reinterpret_cast<Superblock*>(base);
  slots_ = reinterpret_cast<Slot*>(base + geometry_.slots_offset);
  rows_ = reinterpret_cast<ClientRow*>(base + geometry_.rows_offset);
  tombstones_ = reinterpret_cast<Tombstone*>(base + geometry_.tombstones_offset);
  data_ = base + geometry_.data_offset;
  windows_.resize(geometry_.slots);
  row_writes_.resize(geometry_.rows);
  row_epochs_.resize(geometry_.rows);
}

std::shared_ptr<SegmentAgent> SegmentAgent::create(const std::optional<std::string>& path,
                                                   const SegmentSpec& spec) {
  CreatedFile made = create_segment_file(path, spec);
  std::shared_ptr<SegmentAgent> agent(new SegmentAgent(std::move(made.fd), made.geometry, path));
  if (spec.populate) agent->map_.populate(true);
  agent->format();
  return agent;
}

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

SegmentAgent::~SegmentAgent() = default;

void SegmentAgent::format() {
  superblock_->geometry = geometry_;
  superblock_->geometry_crc = crc32c(&geometry_, sizeof geometry_);
  superblock_->owner_pid = static_cast<std::uint32_t>(::getpid());
  allocator_.reset(geometry_.data_bytes);
  free_slots_.reserve(geometry_.slots);
  for (std::uint32_t i = geometry_.slots; i-- > 0;) free_slots_.push_back(i);
  counts_[index_of(SlotState::kFree)] = geometry_.slots;
  std::uint64_t magic;
  std::memcpy(&magic, kSegmentMagic, sizeof magic);
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(superblock_->magic))
      .store(magic);
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

std::unique_lock<std::mutex> SegmentAgent::enter() const {
  if (process_ != process_number()) {
    throw SegmentClosed(
        "this segment belongs to the parent process; a forked child must not use it");
  }
  std::unique_lock lock(mutex_);
  if (closed_) throw SegmentClosed("the segment is closed");
  return lock;
}

Status SegmentAgent::close() {
  if (process_ != process_number()) return Status::kOk;
  const std::lock_guard lock(mutex_);
  if (closed_) return Status::kOk;
  if (windows_open_ > 0) return Status::kBusy;
  closed_ = true;
  map_ = Mapping();
  fd_ = OwnedFd();
  return Status::kOk;
}

Status SegmentAgent::destroy() {
  {
    const std::unique_lock lock = enter();
    if (windows_open_ > 0) return Status::kBusy;
    if (path_ && ::unlink(path_->c_str()) != 0 && errno != ENOENT) {
      throw std::system_error(errno, std::generic_category(), "removal of " + *path_);
    }
  }
  return close();
}

bool SegmentAgent::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

int SegmentAgent::fd() const {
  const std::unique_lock lock = enter();
  return fd_.get();
}

std::uint64_t SegmentAgent::term() const {
  const std::unique_lock lock = enter();
  return term_of(*superblock_);
}

std::uint64_t SegmentAgent::sequence() const {
  const std::unique_lock lock = enter();
  return superblock_->sequence.load();
}

std::uint64_t SegmentAgent::valid_until_ns() const {
  const std::unique_lock lock = enter();
  return superblock_->valid_until_ns.load();
}

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

bool SegmentAgent::raise_term(std::uint64_t term, std::span<const std::uint8_t, 16> instance) {
  const std::unique_lock lock = enter();
  const std::uint32_t index = superblock_->term_index.load() & 1;
  const TermRecord& current = superblock_->terms[index];
  if (term < current.term) return false;
  if (term == current.term) return std::equal(instance.begin(), instance.end(), current.instance);
  TermRecord& next = superblock_->terms[1 - index];
  next.term = term;
  std::copy(instance.begin(), instance.end(), next.instance);
  superblock_->term_index.store(1 - index);
  return true;
}

void SegmentAgent::set_valid_until(std::uint64_t boottime_ns) {
  const std::unique_lock lock = enter();
  superblock_->valid_until_ns.store(boottime_ns);
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

// --- claim ---------------------------------------------------------------------------------------

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

// --- the slot's word
// -------------------------------------------------------------------------------

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

// --- seal, abort, expire, retire
// -------------------------------------------------------------------

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

// --- drain
// -----------------------------------------------------------------------------------------

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

// --- windows
// ---------------------------------------------------------------------------------------

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

Window SegmentAgent::window(std::uint32_t index, std::uint64_t generation, SlotState state,
                            std::uint64_t offset, std::uint64_t length) {
  if (index >= geometry_.slots) return {Status::kNotFound, 0, 0, {}};
  const Slot& slot = slots_[index];
  if (slot.word.load() != slot_word(generation, state)) return {Status::kMoved, 0, 0, {}};
  Window open{Status::kOk, slot.crc, slot.size, {}};
  if (offset > slot.size) return {Status::kBounds, slot.crc, slot.size, {}};
  if (length == kWholeObject) length = slot.size - offset;
  if (length > slot.size - offset) return {Status::kBounds, slot.crc, slot.size, {}};
  std::vector<Extent> extents;
  if (!read_extents(slot, data_, geometry_.data_bytes, slot.size, extents)) {
    return {Status::kInternal, slot.crc, slot.size, {}};
  }
  for (const Extent& extent : extents) {
    if (length == 0) break;
    if (offset >= extent.bytes) {
      offset -= extent.bytes;
      continue;
    }
    const std::uint64_t bytes = std::min(extent.bytes - offset, length);
    open.parts.push_back({data_ + extent.offset + offset, bytes});
    length -= bytes;
    offset = 0;
  }
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

// --- what it says about itself
// -----------------------------------------------------------------------

Inventory SegmentAgent::inventory(std::uint64_t start_slot, std::uint64_t slots_max) {
  constexpr std::uint64_t kSlotsPerLock = 512;  // so that claims and reads go on in between
  Inventory out;
  std::uint64_t at = std::min<std::uint64_t>(start_slot, geometry_.slots);
  const std::uint64_t end = at + std::min<std::uint64_t>(slots_max, geometry_.slots - at);
  out.sequence = sequence();
  std::string text;
  while (at < end) {
    const std::unique_lock lock = enter();
    for (const std::uint64_t stop = std::min(end, at + kSlotsPerLock); at < stop; ++at) {
      const Slot& slot = slots_[at];
      const std::uint64_t word = slot.word.load();
      if (word_state(word) != SlotState::kSealed) continue;
      if (!read_text(slot, data_, geometry_.data_bytes, text)) continue;
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
  }
  out.next_start = at;
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
    const auto same = std::find_if(out.begin(), out.end(), [&](const TombstoneEntry& other) {
      return std::equal(std::begin(copy.hash), std::end(copy.hash), other.hash);
    });
    if (same == out.end()) {
      out.push_back(copy);
    } else if (std::pair(same->term, same->seq) < std::pair(copy.term, copy.seq)) {
      *same = copy;
    }
  }
  return out;
}

}  // namespace moonpool
