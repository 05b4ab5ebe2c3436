#include "reader_role.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace moonpool {
namespace {
constexpr std::uint32_t kPeerEnds = EPOLLRDHUP | EPOLLONESHOT;
}  // namespace

bool ReaderRole::enter() {
  std::lock_guard lock(mutex_);
  if (led_ || gone_) return false;
  if (!kick_) kick_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!kick_) return false;  // out of descriptors: the I/O thread goes on reading
  led_ = true;
  watch_locked();
  return true;
}

bool ReaderRole::sleep(std::int64_t until_ns) {
  std::int64_t left = std::max<std::int64_t>(until_ns - monotonic_ns(), 0);
  timespec time{left / 1'000'000'000, left % 1'000'000'000};
  pollfd fds[] = {{source_.fd(), POLLIN, 0}, {kick_.get(), POLLIN, 0}};
  if (::ppoll(fds, 2, &time, nullptr) <= 0) return false;
  if (fds[1].revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] auto got = ::read(kick_.get(), &count, sizeof(count));
  }
  return fds[0].revents != 0;
}

void ReaderRole::leave() {
  std::lock_guard lock(mutex_);
  led_ = false;
  end_seen_ = false;
  watch_locked();
  left_.notify_all();
}

void ReaderRole::on_event(std::uint32_t events) {
  std::lock_guard lock(mutex_);
  if (armed_ & EPOLLONESHOT) armed_ = 0;
  if (led_ && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) end_seen_ = true;
}

bool ReaderRole::led() const {
  std::lock_guard lock(mutex_);
  return led_;
}

void ReaderRole::kick() {
  std::lock_guard lock(mutex_);
  if (!led_) return;
  std::uint64_t one = 1;
  [[maybe_unused]] auto written = ::write(kick_.get(), &one, sizeof(one));
}

void ReaderRole::retire() {
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
  }
  kick();
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this] { return !led_; });
}

bool ReaderRole::gone() const {
  std::lock_guard lock(mutex_);
  return gone_;
}

void ReaderRole::expect() {
  std::lock_guard lock(mutex_);
  unanswered_++;
}

void ReaderRole::answered() {
  std::lock_guard lock(mutex_);
  if (unanswered_ > 0) unanswered_--;
}

void ReaderRole::watch() {
  std::lock_guard lock(mutex_);
  watch_locked();
}

void ReaderRole::want_write(bool wanted) {
  std::lock_guard lock(mutex_);
  if (wanted == wants_write_) return;
  wants_write_ = wanted;
  watch_locked();
}

// Asks the kernel only for a change. EPOLLIN stays when nothing is to come: who never waits, never
// pays for it.
void ReaderRole::watch_locked() {
  if (gone_) return;
  bool read = !led_ && (unanswered_ > 0 || (armed_ & EPOLLIN));
  std::uint32_t wanted = read ? EPOLLIN : end_seen_ ? EPOLLONESHOT : kPeerEnds;
  if (wants_write_) wanted |= EPOLLOUT;
  if (wanted == armed_ || wanted == EPOLLONESHOT) return;
  armed_ = wanted;
  loop_.set_events(source_, wanted);
}

}  // namespace moonpool
