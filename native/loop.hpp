// The endpoint's one I/O thread: an epoll set of sources, one timer, and commands from other
// threads. Whatever a source owns is touched by this thread only, unless the source says otherwise.
#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "socket_io.hpp"

namespace moonpool {

class Source : public std::enable_shared_from_this<Source> {
 public:
  static constexpr std::int64_t kNoDeadline = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kRemove = -1;

  virtual ~Source() = default;
  virtual int fd() const = 0;
  // A turn of bounded work; false when the source is finished.
  virtual bool on_event(std::uint32_t events) = 0;
  // Ends what is due; returns the source's next deadline, or kRemove.
  virtual std::int64_t on_timer(std::int64_t now_ns) = 0;
  // The last call: release everything.
  virtual void on_removed() = 0;

  std::uint64_t token = 0;  // set by the loop
};

class Loop {
 public:
  Loop();
  ~Loop() { stop(); }

  // I/O thread only.
  void add(std::shared_ptr<Source> source, std::uint32_t events);
  void remove(std::uint64_t token);
  void for_each(const std::function<void(Source&)>& visit);

  // Any thread.
  void set_events(const Source& source, std::uint32_t events);
  void note_deadline(std::int64_t deadline_ns);
  // Runs `command` on the I/O thread; false once the loop has stopped (it was not run).
  bool post(std::function<void()> command);
  bool run(std::function<void()> command);  // and waits for it
  // Removes every source and joins the thread.
  void stop();

 private:
  void thread_main();
  void run_commands();
  void run_timers();

  Descriptor epoll_, wake_, timer_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Source>> sources_;
  std::uint64_t next_token_ = 2;  // 0 and 1 are wake-up and timer

  std::mutex timer_mutex_;
  std::atomic<std::int64_t> armed_ns_{Source::kNoDeadline};

  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;
  bool stopping_ = false;
  bool stopped_ = false;

  std::mutex join_mutex_;
  std::unique_ptr<std::thread> thread_;
  const pid_t owner_;
};

}  // namespace moonpool
