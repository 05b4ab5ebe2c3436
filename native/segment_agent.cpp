#include "segment_agent.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "crc.hpp"
#include "process_number.hpp"
#include "segment_agent_detail.hpp"

namespace moonpool {

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
  if (process_ != process_number()) return true;  // the lock may be held for ever in a forked child
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
  // Claims of an older term can never be sealed: their memory returns when their writers are gone
  // or say they are done.
  if (counts_[index_of(SlotState::kWriting)] > 0) {
    for (std::uint32_t slot = 0; slot < geometry_.slots; ++slot) {
      if (word_state(slots_[slot].word.load()) == SlotState::kWriting) retire_slot(slot, 0);
    }
  }
  return true;
}

void SegmentAgent::set_valid_until(std::uint64_t boottime_ns) {
  const std::unique_lock lock = enter();
  superblock_->valid_until_ns.store(boottime_ns);
}

}  // namespace moonpool
