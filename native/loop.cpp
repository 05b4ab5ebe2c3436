#include "loop.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <future>
#include <system_error>
#include <utility>

namespace moonpool {
namespace {

constexpr std::uint64_t kWakeToken = 0;
constexpr std::uint64_t kTimerToken = 1;
constexpr int kEventsPerTurn = 64;

int checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

void watch(int epoll, int fd, std::uint64_t token, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  checked(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "cannot watch a descriptor");
}

}  // namespace

Loop::Loop()
    : epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "cannot make an epoll set")),
      wake_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "cannot make an eventfd")),
      timer_(checked(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                     "cannot make a timer")),
      owner_(::getpid()) {
  watch(epoll_.get(), wake_.get(), kWakeToken, EPOLLIN);
  watch(epoll_.get(), timer_.get(), kTimerToken, EPOLLIN);
  // Signals belong to the application's threads (Python runs its handlers on the main one).
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::make_unique<std::thread>([this] { thread_main(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_->native_handle(), "moonpool-io");
}

void Loop::add(std::shared_ptr<Source> source, std::uint32_t events) {
  source->token = next_token_++;
  watch(epoll_.get(), source->fd(), source->token, events);
  note_deadline(source->on_timer(monotonic_ns()));
  sources_.emplace(source->token, std::move(source));
}

void Loop::remove(std::uint64_t token) {
  auto found = sources_.find(token);
  if (found == sources_.end()) return;
  std::shared_ptr<Source> source = std::move(found->second);
  sources_.erase(found);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source->fd(), nullptr);
  source->on_removed();
}

void Loop::for_each(const std::function<void(Source&)>& visit) {
  for (auto& [token, source] : sources_) visit(*source);
}

void Loop::set_events(const Source& source, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = source.token;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, source.fd(), &event);
}

void Loop::note_deadline(std::int64_t deadline_ns) {
  if (deadline_ns >= armed_ns_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(timer_mutex_);
  if (deadline_ns >= armed_ns_.load(std::memory_order_relaxed)) return;
  armed_ns_.store(deadline_ns, std::memory_order_relaxed);
  std::int64_t at = std::max<std::int64_t>(deadline_ns, 1);  // 0 would disarm
  itimerspec when{};
  when.it_value = {at / 1'000'000'000, at % 1'000'000'000};
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

bool Loop::post(std::function<void()> command) {
  std::lock_guard lock(mutex_);
  if (stopped_) return false;
  commands_.push_back(std::move(command));
  if (commands_.size() == 1) {
    std::uint64_t one = 1;
    [[maybe_unused]] auto written = ::write(wake_.get(), &one, sizeof(one));
  }
  return true;
}

bool Loop::run(std::function<void()> command) {
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  bool accepted = post([command = std::move(command), done] {
    command();
    done->set_value();
  });
  if (accepted) future.wait();
  return accepted;
}

void Loop::stop() {
  std::lock_guard join_lock(join_mutex_);
  if (!thread_) return;
  if (owner_ != ::getpid()) {  // a fork child has the object but not the thread
    [[maybe_unused]] auto* leaked = thread_.release();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    std::uint64_t one = 1;
    [[maybe_unused]] auto written = ::write(wake_.get(), &one, sizeof(one));
  }
  thread_->join();
  thread_.reset();
}

void Loop::run_commands() {
  std::uint64_t count = 0;
  [[maybe_unused]] auto got = ::read(wake_.get(), &count, sizeof(count));
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (auto& command : commands) command();
}

void Loop::run_timers() {
  std::uint64_t count = 0;
  [[maybe_unused]] auto got = ::read(timer_.get(), &count, sizeof(count));
  {
    // Before the scan, so that a deadline noted meanwhile arms the timer again.
    std::lock_guard lock(timer_mutex_);
    armed_ns_.store(Source::kNoDeadline, std::memory_order_relaxed);
  }
  std::int64_t now = monotonic_ns();
  std::int64_t next = Source::kNoDeadline;
  std::vector<std::uint64_t> finished;
  for (auto& [token, source] : sources_) {
    std::int64_t due = source->on_timer(now);
    if (due == Source::kRemove) {
      finished.push_back(token);
    } else {
      next = std::min(next, due);
    }
  }
  for (std::uint64_t token : finished) remove(token);
  note_deadline(next);
}

void Loop::thread_main() {
  epoll_event events[kEventsPerTurn];
  while (true) {
    int count = ::epoll_wait(epoll_.get(), events, kEventsPerTurn, -1);
    bool commands = false, timers = false;
    for (int i = 0; i < count; i++) {
      std::uint64_t token = events[i].data.u64;
      if (token == kWakeToken) {
        commands = true;
      } else if (token == kTimerToken) {
        timers = true;
      } else if (auto found = sources_.find(token); found != sources_.end()) {
        std::shared_ptr<Source> source = found->second;
        if (!source->on_event(events[i].events)) remove(token);
      }
    }
    if (timers) run_timers();
    if (commands) run_commands();
    std::unique_lock lock(mutex_);
    if (stopping_ && commands_.empty()) {
      stopped_ = true;
      break;
    }
  }
  while (!sources_.empty()) remove(sources_.begin()->first);
}

}  // namespace moonpool
