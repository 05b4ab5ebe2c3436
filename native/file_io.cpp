#include "file_io.hpp"

#include <algorithm>
#include <utility>

#include "socket_io.hpp"

namespace moonpool {
namespace {
constexpr std::int64_t kMinuteNs = 60'000'000'000;
// How long callers leave their writes to others after one that had to wait.
constexpr std::int64_t kBehindNs = 1'000'000'000;
}  // namespace

void FileIo::submit(const std::shared_ptr<FileJob>& job, bool may_be_cached) {
  if (may_be_cached && !job->write) {
    job->take_cached(monotonic_ns());
  } else if (may_be_cached && monotonic_ns() >= behind_until_ns_.load(std::memory_order_relaxed)) {
    if (!job->write_here()) behind_until_ns_ = monotonic_ns() + kBehindNs;
  }
  if (job->terminal()) return;
  std::lock_guard lock(mutex_);
  if (stopping_) {
    job->refuse(Status::kUnreachable, "the engine was closed");
    job->cancel();
  } else if (jobs_.size() >= options_.jobs_max) {
    job->refuse(Status::kBusy, std::to_string(jobs_.size()) + " file ops wait already");
    job->cancel();
  } else {
    line_up(job);
  }
}

void FileIo::line_up(const std::shared_ptr<FileJob>& job) {
  // Once, however many of its pieces come back: the queue's length is that of the jobs in it.
  if (!std::exchange(job->queued, true)) jobs_.push_back(job);
  wake();
}

void FileIo::close() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    for (const auto& job : jobs_) job->cancel();
    jobs_.clear();
    wake();
  }
  join();
}

std::optional<FileIo::Work> FileIo::take(std::int64_t now_ns) {
  while (!jobs_.empty()) {
    std::shared_ptr<FileJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    if (std::optional<FileJob::Piece> piece = job->next(now_ns)) {
      jobs_.push_back(job);
      return Work{std::move(job), *piece};
    }
    job->queued = false;
  }
  return std::nullopt;
}

void FileIo::tell(const Work& work, std::int64_t moved) {
  const auto& [job, piece] = work;
  if (!job->finished(piece, moved)) return;
  std::lock_guard lock(mutex_);
  if (stopping_) {
    job->cancel();
  } else {
    line_up(job);
  }
}

std::int64_t FileIo::expire(std::int64_t now_ns) {
  std::erase_if(jobs_, [now_ns](const auto& job) { return job->expire(now_ns); });
  std::int64_t next_ns = now_ns + kMinuteNs;
  for (const auto& job : jobs_) next_ns = std::min(next_ns, job->deadline_ns);
  return std::max(next_ns, now_ns + 1'000'000);
}

}  // namespace moonpool
