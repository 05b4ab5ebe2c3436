#include "segment_client.hpp"

#include <time.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <utility>

#include "copy.hpp"
#include "crc.hpp"
#include "segment_slot.hpp"

namespace moonpool {

// A call under way: `close` waits for it, and it does not begin on a closed or foreign client.
class SegmentClient::Use {
 public:
  explicit Use(SegmentClient& client) : client_(client) {
    if (client.process_ != process_number()) {
      throw SegmentClosed(
          "this segment client belongs to the parent process: open one in the child");
    }
    client.uses_.fetch_add(1);
    if (!client.closed_.load()) return;
    leave();
    throw SegmentClosed("the segment client is closed");
  }
  ~Use() { leave(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  void leave() {
    if (client_.uses_.fetch_sub(1) == 1 && client_.closed_.load()) client_.uses_.notify_all();
  }
  SegmentClient& client_;
};

SegmentClient::SegmentClient(OwnedFd fd, const Geometry& geometry)
    : fd_(std::move(fd)),
      geometry_(geometry),
      process_(process_number()),
      tables_(fd_.get(), 0, geometry.data_offset, false),
      data_map_(fd_.get(), geometry.data_offset, geometry.file_bytes - geometry.data_offset, true) {
  data_map_.advise_huge();
  superblock_ = reinterpret_cast<const Superblock*>(tables_.data());
  slots_ = reinterpret_cast<const Slot*>(tables_.data() + geometry_.slots_offset);
  data_ = data_map_.data();
}

std::shared_ptr<SegmentClient> SegmentClient::attach(OwnedFd fd, const std::string& name,
                                                     bool populate) {
  const Geometry geometry = read_geometry(fd.get(), name);
  std::shared_ptr<SegmentClient> client(new SegmentClient(std::move(fd), geometry));
  client->take_row();
  if (populate) {
    client->tables_.populate(false);
    client->data_map_.populate(true);
  }
  return client;
}

std::shared_ptr<SegmentClient> SegmentClient::open(const std::string& path, bool populate) {
  return attach(open_segment(path, true), path, populate);
}

std::shared_ptr<SegmentClient> SegmentClient::open_fd(int fd, bool populate) {
  return attach(reopen_segment(fd), "descriptor " + std::to_string(fd), populate);
}

SegmentClient::~SegmentClient() {
  if (process_ == process_number() && own_row_ != nullptr && !closed_.load())
    own_row_->pid.store(0);
}

Status SegmentClient::close() {
  if (process_ != process_number() || closed_.exchange(true)) return Status::kOk;
  for (std::uint32_t uses = uses_.load(); uses != 0; uses = uses_.load()) uses_.wait(uses);
  if (pins() != 0) {
    closed_.store(false);
    return Status::kBusy;
  }
  own_row_->pid.store(0);
  row_map_ = Mapping();
  data_map_ = Mapping();
  tables_ = Mapping();
  fd_ = OwnedFd();  // and with it the row's lock
  return Status::kOk;
}

// Rows that look free first; a row whose client died is free as soon as its lock is.
void SegmentClient::take_row() {
  const auto* rows = reinterpret_cast<const ClientRow*>(tables_.data() + geometry_.rows_offset);
  for (const bool only_clear : {true, false}) {
    for (std::uint32_t row = 0; row < geometry_.rows; ++row) {
      if (only_clear && rows[row].pid.load() != 0) continue;
      if (try_row(row)) return;
    }
  }
  throw SegmentFull("all " + std::to_string(geometry_.rows) +
                    " client rows of the segment are taken: close clients or create it with more");
}

bool SegmentClient::try_row(std::uint32_t row) {
  if (!lock_byte(fd_.get(), row_lock_byte(row))) return false;
  const std::uint64_t at = geometry_.rows_offset + sizeof(ClientRow) * std::uint64_t{row};
  const std::uint64_t page = at / geometry_.page_bytes * geometry_.page_bytes;
  row_map_ = Mapping(fd_.get(), page, geometry_.page_bytes, true);
  own_row_ = reinterpret_cast<ClientRow*>(row_map_.data() + (at - page));
  for (auto& pin : own_row_->pins) pin.store(0);
  row_ = row;
  row_epoch_ = own_row_->epoch.fetch_add(1) + 1;
  pid_ = static_cast<std::uint32_t>(::getpid());
  own_row_->pid.store(pid_);
  return true;
}

std::uint64_t SegmentClient::renew_epoch() {
  const Use use(*this);
  row_epoch_ = own_row_->epoch.fetch_add(1) + 1;
  return row_epoch_;
}

bool SegmentClient::expired() const {
  const std::uint64_t valid_until = superblock_->valid_until_ns.load(std::memory_order_acquire);
  if (valid_until == 0) return false;
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000ull + static_cast<std::uint64_t>(now.tv_nsec) > valid_until;
}

const Slot* SegmentClient::find(std::uint32_t slot, std::uint64_t word, Status& status) const {
  if (slot >= geometry_.slots) {
    status = Status::kNotFound;
    return nullptr;
  }
  status = slots_[slot].word.load(std::memory_order_acquire) == word ? Status::kOk : Status::kMoved;
  return status == Status::kOk ? &slots_[slot] : nullptr;
}

namespace {

// Fields or bytes that made no sense: either the slot changed meanwhile, or it is `otherwise`.
Status unless_moved(const Slot& slot, std::uint64_t word, Status otherwise) {
  read_fence();
  return slot.word.load(std::memory_order_relaxed) == word ? otherwise : Status::kMoved;
}

}  // namespace

std::int64_t SegmentClient::read(std::uint32_t index, std::uint64_t generation, std::byte* to,
                                 std::size_t capacity, bool verify) {
  const Use use(*this);
  const std::uint64_t word = slot_word(generation, SlotState::kSealed);
  Status status;
  const Slot* slot = find(index, word, status);
  if (slot == nullptr) return failure(status);
  if (expired()) return failure(Status::kExpired);
  const std::uint64_t size = peek(slot->size);
  const std::uint32_t crc = peek(slot->crc);
  if (size > capacity) return failure(unless_moved(*slot, word, Status::kBounds));
  Layout layout;
  if (!layout.load(*slot, data_, geometry_.data_bytes, size)) {
    return failure(unless_moved(*slot, word, Status::kInternal));
  }
  std::uint32_t seen = 0;
  layout.pieces(data_, 0, size, [&](const std::byte* from, std::uint64_t bytes) {
    if (verify) {
      seen = copy_crc32c(to, from, bytes, seen);
    } else {
      std::memcpy(to, from, bytes);
    }
    to += bytes;
  });
  status = unless_moved(*slot, word, verify && seen != crc ? Status::kCorrupt : Status::kOk);
  return status == Status::kOk ? static_cast<std::int64_t>(size) : failure(status);
}

Status SegmentClient::read_range(std::uint32_t index, std::uint64_t generation,
                                 std::uint64_t offset, std::byte* to, std::size_t bytes) {
  const Use use(*this);
  const std::uint64_t word = slot_word(generation, SlotState::kSealed);
  Status status;
  const Slot* slot = find(index, word, status);
  if (slot == nullptr) return status;
  if (expired()) return Status::kExpired;
  const std::uint64_t size = peek(slot->size);
  if (offset > size || bytes > size - offset) return unless_moved(*slot, word, Status::kBounds);
  Layout layout;
  if (!layout.load(*slot, data_, geometry_.data_bytes, size))
    return unless_moved(*slot, word, Status::kInternal);
  layout.pieces(data_, offset, bytes, [&](const std::byte* from, std::uint64_t piece) {
    std::memcpy(to, from, piece);
    to += piece;
  });
  return unless_moved(*slot, word, Status::kOk);
}

std::int64_t SegmentClient::size_of(std::uint32_t index, std::uint64_t generation) {
  const Use use(*this);
  const std::uint64_t word = slot_word(generation, SlotState::kSealed);
  Status status;
  const Slot* slot = find(index, word, status);
  if (slot == nullptr) return failure(status);
  const std::uint64_t size = peek(slot->size);
  status =
      unless_moved(*slot, word, size <= geometry_.data_bytes ? Status::kOk : Status::kInternal);
  return status == Status::kOk ? static_cast<std::int64_t>(size) : failure(status);
}

template <class Copy>
Status SegmentClient::write_with(std::uint32_t index, std::uint64_t generation,
                                 std::uint64_t offset, std::uint64_t bytes, bool whole, Copy copy) {
  const Use use(*this);
  const std::uint64_t word = slot_word(generation, SlotState::kWriting);
  Status status;
  const Slot* slot = find(index, word, status);
  if (slot == nullptr) return status;
  // Only the row that claimed it is proof of this writer's life: without it the memory could be
  // given to somebody else in mid-copy.
  if (peek(slot->writer_row) != row_ || peek(slot->writer_epoch) != row_epoch_) {
    return unless_moved(*slot, word, Status::kRefused);
  }
  const std::uint64_t size = peek(slot->size);
  if (offset > size || bytes > size - offset || (whole && bytes != size)) {
    return unless_moved(*slot, word, Status::kBounds);
  }
  Layout layout;
  if (!layout.load(*slot, data_, geometry_.data_bytes, size))
    return unless_moved(*slot, word, Status::kInternal);
  // All of it is this client's until it says otherwise, so the word need not be looked at in
  // between; but nothing may be written through fields read after the slot had moved on.
  if (unless_moved(*slot, word, Status::kOk) != Status::kOk) return Status::kMoved;
  layout.pieces(data_, offset, bytes, copy);
  return unless_moved(*slot, word, Status::kOk);
}

Status SegmentClient::write(std::uint32_t slot, std::uint64_t generation, const std::byte* from,
                            std::size_t bytes, std::uint32_t& crc) {
  crc = 0;
  return write_with(slot, generation, 0, bytes, true, [&](std::byte* to, std::uint64_t piece) {
    crc = copy_crc32c(to, from, piece, crc);
    from += piece;
  });
}

Status SegmentClient::write_range(std::uint32_t slot, std::uint64_t generation,
                                  std::uint64_t offset, const std::byte* from, std::size_t bytes) {
  return write_with(slot, generation, offset, bytes, false,
                    [&](std::byte* to, std::uint64_t piece) {
                      std::memcpy(to, from, piece);
                      from += piece;
                    });
}

Status SegmentClient::checksum(std::uint32_t index, std::uint64_t generation, std::uint32_t& crc) {
  const Use use(*this);
  crc = 0;
  Status status;
  std::uint64_t word = slot_word(generation, SlotState::kSealed);
  const Slot* slot = find(index, word, status);
  if (slot == nullptr && status == Status::kMoved) {
    word = slot_word(generation, SlotState::kWriting);
    slot = find(index, word, status);
  }
  if (slot == nullptr) return status;
  const std::uint64_t size = peek(slot->size);
  Layout layout;
  if (!layout.load(*slot, data_, geometry_.data_bytes, size))
    return unless_moved(*slot, word, Status::kInternal);
  layout.pieces(data_, 0, size, [&](const std::byte* from, std::uint64_t bytes) {
    crc = crc32c(from, bytes, crc);
  });
  return unless_moved(*slot, word, Status::kOk);
}

// --- pins
// --------------------------------------------------------------------------------------------

std::uint32_t SegmentClient::pins() const {
  std::uint32_t count = 0;
  for (const auto& taken : pins_taken_) count += std::popcount(taken.load());
  return count;
}

std::uint32_t SegmentClient::take_pin() {
  for (std::uint32_t i = 0; i < kPinWords; ++i) {
    const std::uint32_t here = std::min(64u, kPinsPerRow - i * 64);
    const std::uint64_t all = here == 64 ? ~0ull : (1ull << here) - 1;
    std::uint64_t taken = pins_taken_[i].load();
    while (taken != all) {
      const std::uint32_t bit = std::countr_one(taken);
      if (pins_taken_[i].compare_exchange_weak(taken, taken | 1ull << bit)) return i * 64 + bit;
    }
  }
  return kPinsPerRow;
}

void SegmentClient::give_pin(std::uint32_t pin) {
  own_row_->pins[pin].store(0, std::memory_order_release);
  pins_taken_[pin / 64].fetch_and(~(1ull << pin % 64));
}

Pinned SegmentClient::pin(std::uint32_t index, std::uint64_t generation, bool verify) {
  const Use use(*this);
  Pinned pinned;
  if (index >= geometry_.slots) return pinned.status = Status::kNotFound, pinned;
  const std::uint64_t word = slot_word(generation, SlotState::kSealed);
  const Slot& slot = slots_[index];
  pinned.pin = take_pin();
  if (pinned.pin == kPinsPerRow) return pinned.status = Status::kBusy, pinned;
  // Both sequentially consistent: either this load sees the retirement, or the agent's scan after
  // the retirement sees this pin.
  own_row_->pins[pinned.pin].store(pin_word(index, generation), std::memory_order_seq_cst);
  if (slot.word.load(std::memory_order_seq_cst) != word) {
    pinned.status = Status::kMoved;
  } else if (expired()) {
    pinned.status = Status::kExpired;
  } else {
    // From here on the slot's fields and bytes stay as they are.
    Layout layout;
    pinned.size = slot.size;
    pinned.crc = slot.crc;
    if (!layout.load(slot, data_, geometry_.data_bytes, pinned.size)) {
      pinned.status = Status::kInternal;
    } else if (layout.count() > 1) {
      pinned.status = Status::kBounds;
    } else {
      pinned.data = data_ + layout.offset();
      const bool good = !verify || crc32c(pinned.data, pinned.size) == pinned.crc;
      pinned.status = good ? Status::kOk : Status::kCorrupt;
    }
  }
  if (pinned.status != Status::kOk) give_pin(pinned.pin);
  return pinned;
}

void SegmentClient::unpin(std::uint32_t pin) {
  if (process_ == process_number()) give_pin(pin);
}

}  // namespace moonpool
