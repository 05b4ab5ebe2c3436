// Two ends of one host, one CPU: a thread that asks for little over loopback, and waits, has
// nothing to do until the answer is there, so the server may as well work where the asker sleeps.
// Woken on another CPU it costs an interrupt and, where that CPU had gone idle, its way out of
// idle, twice a question; and the bytes change caches.
//
//   asker   WaitStreak   a run of questions, each the only one, each waited for at once: the next
//                        is flagged (wire::kFlagWaited), and its wait stays on the CPU that it is
//                        on, else the kernel wakes it on an idle one
//   server  AskerStreak  a run of flagged questions of one connection and nobody else: its I/O
//                        thread goes to the CPU that the asker's packets come from, and is let go
//                        by the first question that is anything else
//
// The streaks are pure; the others ask the kernel; what it refuses is left as it is.
#pragma once
#include <sched.h>

#include <cstdint>
#include <limits>

namespace moonpool {

class WaitStreak {
 public:
  static constexpr int kSteady = 16;
  // From a question's leaving to its wait. Who does something in between wants both CPUs; but the
  // answer itself may have been made in between, on this one.
  static constexpr std::int64_t kAtOnceNs = 500'000;

  // A question is about to leave; `alone`: none is under way. True: flag it.
  bool sent(bool alone, std::int64_t now_ns);
  // The wait for that question begins.
  void waited(bool alone, std::int64_t now_ns);

 private:
  int length_ = 0;
  bool waited_ = false;  // for the last one that left
  std::int64_t sent_ns_ = 0;
};

class AskerStreak {
 public:
  static constexpr int kSteady = 16;

  // A question of `connection` is here; true: serve it where it comes from.
  bool asked(std::uint64_t connection, bool waited);
  bool gone(std::uint64_t connection);  // true: it was of that connection

 private:
  std::uint64_t connection_ = 0;
  int length_ = 0;
};

// Keeps the calling thread on one CPU until it is let go, on the same thread. An affinity that
// somebody else has set meanwhile is theirs.
class CpuHold {
 public:
  // False when the thread may not be there, or the kernel refuses; then it is held nowhere.
  bool take(int cpu);
  void let_go();
  int cpu() const { return cpu_; }  // -1: none

 private:
  int cpu_ = -1;
  cpu_set_t allowed_;
};

// A wait that stays on the CPU it begins on.
class CpuStay {
 public:
  CpuStay() = default;
  CpuStay(const CpuStay&) = delete;
  CpuStay& operator=(const CpuStay&) = delete;
  ~CpuStay() { hold_.let_go(); }
  bool begin() { return hold_.take(::sched_getcpu()); }

 private:
  CpuHold hold_;
};

// An I/O thread's own.
class CpuFollower {
 public:
  static constexpr std::int64_t kIdleNs = 100'000'000;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // A question of `connection`, over `socket`, is here. True when the thread has moved for it.
  bool asked(std::uint64_t connection, bool waited, int socket, std::int64_t now_ns);
  void gone(std::uint64_t connection);
  // When an asker that asks no more is left.
  std::int64_t due_ns() const;
  std::int64_t on_timer(std::int64_t now_ns);

 private:
  std::int64_t asked_ns_ = 0;
  AskerStreak streak_;
  CpuHold hold_;
};

}  // namespace moonpool
