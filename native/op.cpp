#include "op.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <system_error>
#include <utility>

namespace moonpool {
namespace {
constexpr std::int64_t kWaitMaxMs = std::int64_t{1} << 40;  // some 35 years: no sum overflows
}  // namespace

const char* name_of(OpState state) {
  constexpr const char* kNames[] = {"QUEUED", "POSTED", "DONE", "FAILED", "CANCELLED", "EXPIRED"};
  return kNames[static_cast<std::size_t>(state)];
}

Completions::Completions() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw std::system_error(errno, std::generic_category(), "cannot make an eventfd");
}

void Completions::push(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  ids_.push_back(id);
  if (ids_.size() == 1) {
    std::uint64_t one = 1;
    [[maybe_unused]] auto written = ::write(fd_.get(), &one, sizeof(one));
  }
}

std::vector<std::uint64_t> Completions::drain() {
  std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  [[maybe_unused]] auto got = ::read(fd_.get(), &count, sizeof(count));
  return std::exchange(ids_, {});
}

bool Op::wait(std::int64_t timeout_ms) {
  if (terminal() || timeout_ms == 0) return terminal();
  std::int64_t until_ns = std::numeric_limits<std::int64_t>::max();
  if (timeout_ms > 0) {
    until_ns = monotonic_ns() + std::min(timeout_ms, kWaitMaxMs) * 1'000'000;
  }
  if (auto one = driver.lock()) one->drive(*this, until_ns);
  std::unique_lock lock(mutex_);
  auto over = [this] { return terminal(); };
  if (timeout_ms < 0) {
    ended_.wait(lock, over);
    return true;
  }
  return ended_.wait_for(lock, std::chrono::nanoseconds(until_ns - monotonic_ns()), over);
}

void Op::notify(Completions& completions) {
  std::lock_guard lock(mutex_);
  if (completions_) return;
  completions_ = &completions;
  if (terminal()) completions.push(id);
}

void Op::set_posted() {
  OpState queued = OpState::kQueued;
  state_.compare_exchange_strong(queued, OpState::kPosted, std::memory_order_acq_rel);
}

bool Op::finish(OpState state, Status fill, const std::string& error) {
  OpResult result;
  result.status.assign(count, static_cast<std::uint8_t>(fill));
  result.sizes.assign(count, 0);
  result.crcs.assign(count, 0);
  result.slots.assign(count, 0);
  result.generations.assign(count, 0);
  result.error = error;
  return finish_with(state, std::move(result));
}

bool Op::finish(OpResult result) { return finish_with(OpState::kDone, std::move(result)); }

bool Op::finish_with(OpState state, OpResult result) {
  std::lock_guard lock(mutex_);
  if (terminal()) return false;
  result_ = std::move(result);
  state_.store(state, std::memory_order_release);
  if (completions_) completions_->push(id);
  ended_.notify_all();
  return true;
}

}  // namespace moonpool
