#include "file_job.hpp"

#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "crc.hpp"
#include "socket_io.hpp"

namespace moonpool {
namespace {

constexpr std::uint64_t kOffsetMax = std::numeric_limits<std::int64_t>::max();
// A piece is copied into the page cache in a fraction of this, unless the disk is behind.
constexpr std::int64_t kWaitedNs = 5'000'000;

long sleeps_of_this_thread() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

constexpr std::uint8_t byte_of(Status status) { return static_cast<std::uint8_t>(status); }

}  // namespace

FileJob::FileJob(std::uint64_t id, const FileRequest& request)
    : id(id), fd(request.fd), write(request.write), deadline_ns(request.deadline_ns) {
  const std::size_t count = request.lengths.size();
  if (request.memory_offsets.size() != count || request.file_offsets.size() != count) {
    throw std::invalid_argument("as many offsets as lengths are needed");
  }
  blocks_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t at = request.memory_offsets[i], size = request.lengths[i];
    if (at > request.memory.size || size > request.memory.size - at) {
      throw std::out_of_range("block " + std::to_string(i) + " leaves the memory");
    }
    if (request.file_offsets[i] > kOffsetMax - size) {
      throw std::invalid_argument("block " + std::to_string(i) + " is beyond any file");
    }
    blocks_.push_back({request.memory.data + at, request.file_offsets[i], size, size});
  }
  status_.assign(count, byte_of(Status::kBusy));
  if (request.checksum) crc_.assign(count, 0);
  cut();
  end_if_due();
}

void FileJob::cut() {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (block.size == 0) {
      status_[i] = byte_of(Status::kOk);
      continue;
    }
    for (std::size_t done = 0; done < block.size;) {
      std::size_t take = std::min(block.size - done, kPieceBytes);
      Piece* last = pieces_.empty() ? nullptr : &pieces_.back();
      if (last != nullptr && last->memory + last->size == block.memory + done &&
          last->offset + last->size == block.offset + done && last->size < kPieceBytes) {
        take = std::min(take, kPieceBytes - last->size);
        last->size += take;
      } else {
        pieces_.push_back({block.memory + done, block.offset + done, take, i});
      }
      done += take;
    }
  }
}

std::optional<FileJob::Piece> FileJob::next(std::int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (now_ns >= deadline_ns) stopped_ = true;
  if (stopped_ || given_ == pieces_.size()) {
    end_if_due();
    return std::nullopt;
  }
  if (state_ == OpState::kQueued) state_ = OpState::kPosted;
  out_++;
  return pieces_[given_++];
}

bool FileJob::finished(const Piece& piece, std::int64_t moved) {
  std::vector<std::size_t> arrived;
  {
    std::lock_guard lock(mutex_);
    if (moved == -EINTR || moved == -EAGAIN) {
      pieces_.push_back(piece);
    } else if (moved <= 0) {
      fail_blocks(piece, moved == 0 ? Status::kBounds : Status::kInternal);
      if (error_.empty()) {
        error_ = std::string(write ? "writing " : "reading ") + std::to_string(piece.size) +
                 " bytes at offset " + std::to_string(piece.offset) + ": " +
                 (moved == 0 ? "the file ends before" : std::strerror(static_cast<int>(-moved)));
      }
    } else {
      const auto size = static_cast<std::size_t>(moved);
      Piece done = piece;
      done.size = size;
      arrived = arrive(done);
      if (size < piece.size) {
        std::byte* const rest = piece.memory + size;
        std::size_t block = piece.block;
        while (blocks_[block].memory + blocks_[block].size <= rest) block++;
        pieces_.push_back({rest, piece.offset + size, piece.size - size, block});
      }
    }
  }
  // Outside the lock: the piece is still out, so nobody ends the job or reads these entries.
  for (const std::size_t i : arrived) {
    if (!crc_.empty()) crc_[i] = crc32c(blocks_[i].memory, blocks_[i].size);
  }
  std::lock_guard lock(mutex_);
  out_--;
  end_if_due();
  return given_ < pieces_.size() && state_ == OpState::kPosted;
}

// Whether a piece moves bytes of a block. Blocks that are only read may lie on top of each other,
// in memory or in the file: it does when the same bytes meet at both ends.
bool FileJob::shares(const Block& block, const Piece& piece) {
  const std::uint64_t ahead = block.offset - piece.offset;  // wraps, as the difference below does
  return block.offset < piece.offset + piece.size && piece.offset < block.offset + block.size &&
         static_cast<std::uint64_t>(block.memory - piece.memory) == ahead;
}

// Takes the piece's bytes off the blocks it covers; those now complete.
std::vector<std::size_t> FileJob::arrive(const Piece& piece) {
  std::vector<std::size_t> complete;
  const std::byte* const end = piece.memory + piece.size;
  for (std::size_t i = piece.block; i < blocks_.size(); ++i) {
    Block& block = blocks_[i];
    if (block.size == 0) continue;
    if (!shares(block, piece)) break;
    const std::byte* const from = std::max<const std::byte*>(block.memory, piece.memory);
    const std::byte* const to = std::min<const std::byte*>(block.memory + block.size, end);
    block.left -= static_cast<std::size_t>(to - from);
    if (block.left > 0 || status_[i] != byte_of(Status::kBusy)) continue;
    status_[i] = byte_of(Status::kOk);
    complete.push_back(i);
  }
  return complete;
}

void FileJob::fail_blocks(const Piece& piece, Status status) {
  for (std::size_t i = piece.block; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (block.size == 0) continue;
    if (!shares(block, piece)) break;
    status_[i] = byte_of(status);
  }
}

void FileJob::take_cached(std::int64_t now_ns) {
  while (const std::optional<Piece> piece = next(now_ns)) {
    iovec into{piece->memory, piece->size};
    const ssize_t got = ::preadv2(fd, &into, 1, static_cast<off_t>(piece->offset), RWF_NOWAIT);
    const bool cached = got == static_cast<ssize_t>(piece->size);
    // Anything else is for those who may wait, and they find out what it is.
    finished(*piece, got > 0 ? got : -EAGAIN);
    if (!cached) return;
  }
}

bool FileJob::write_here() {
  const long slept = sleeps_of_this_thread();
  std::int64_t before_ns = monotonic_ns();
  while (const std::optional<Piece> piece = next(before_ns)) {
    const ssize_t put = ::pwrite(fd, piece->memory, piece->size, static_cast<off_t>(piece->offset));
    finished(*piece, put < 0 ? -errno : put);
    const std::int64_t now_ns = monotonic_ns();
    // One that was preempted for so long has not waited.
    if (now_ns - before_ns > kWaitedNs && sleeps_of_this_thread() != slept) return false;
    before_ns = now_ns;
  }
  return true;
}

bool FileJob::expire(std::int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (now_ns >= deadline_ns) stopped_ = true;
  end_if_due();
  return state_ >= OpState::kDone;
}

void FileJob::refuse(Status status, const std::string& why) {
  std::lock_guard lock(mutex_);
  if (state_ != OpState::kQueued) return;
  error_ = why;
  std::fill(status_.begin(), status_.end(), byte_of(status));
  end(OpState::kFailed);
}

void FileJob::cancel() {
  std::lock_guard lock(mutex_);
  if (state_ >= OpState::kDone) return;
  stopped_ = cancelled_ = true;
  end_if_due();
}

void FileJob::end_if_due() {
  if (state_ >= OpState::kDone || !may_end()) return;
  const auto unfinished = [](std::uint8_t one) { return one == byte_of(Status::kBusy); };
  if (std::any_of(status_.begin(), status_.end(), unfinished)) {
    const Status why = cancelled_ ? Status::kCancelled : Status::kExpired;
    std::replace(status_.begin(), status_.end(), byte_of(Status::kBusy), byte_of(why));
    end(cancelled_ ? OpState::kCancelled : OpState::kExpired);
  } else {
    end(error_.empty() ? OpState::kDone : OpState::kFailed);
  }
}

void FileJob::end(OpState state) {
  state_ = state;
  if (completions_ != nullptr) completions_->push(id);
  ended_.notify_all();
}

bool FileJob::wait(std::int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto limit = std::chrono::milliseconds(std::max<std::int64_t>(0, timeout_ms));
  return ended_.wait_for(lock, limit, [this] { return state_ >= OpState::kDone; });
}

void FileJob::notify(Completions& completions) {
  std::lock_guard lock(mutex_);
  if (completions_ != nullptr) return;
  completions_ = &completions;
  if (state_ >= OpState::kDone) completions.push(id);
}

OpState FileJob::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace moonpool
