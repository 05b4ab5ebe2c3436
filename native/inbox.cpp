#include "inbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace moonpool {
namespace {
// Enough for whoever still reads: no more than the queue's own bound is ever read off it.
constexpr std::uint64_t kForEver = std::uint64_t{1} << 62;
}  // namespace

// As a semaphore: who takes one of several leaves it readable for the others.
Inbox::Inbox(std::size_t notifications_max)
    : notifications_max_(notifications_max),
      fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
  if (!fd_) throw std::system_error(errno, std::generic_category(), "cannot make an eventfd");
}

Status Inbox::put(std::span<const std::uint8_t> bytes) {
  std::lock_guard lock(mutex_);
  if (closed_ || notifications_max_ == 0) return Status::kRefused;
  if (waiting_.size() >= notifications_max_) return Status::kBusy;
  waiting_.emplace_back(bytes.begin(), bytes.end());
  add_to_fd(1);
  return Status::kOk;
}

std::vector<NotificationBytes> Inbox::take(std::size_t most) {
  std::lock_guard lock(mutex_);
  std::vector<NotificationBytes> taken;
  for (std::size_t left = std::min(most, waiting_.size()); left > 0; left--) {
    taken.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    std::uint64_t one = 0;
    [[maybe_unused]] auto got = ::read(fd_.get(), &one, sizeof(one));
  }
  return taken;
}

void Inbox::close() {
  std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  add_to_fd(kForEver);
}

void Inbox::add_to_fd(std::uint64_t count) {
  [[maybe_unused]] auto written = ::write(fd_.get(), &count, sizeof(count));
}

}  // namespace moonpool
