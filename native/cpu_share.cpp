#include "cpu_share.hpp"

#include <sys/socket.h>

#include <cstring>

namespace moonpool {
namespace {

cpu_set_t only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  return set;
}

bool affinity(cpu_set_t* set) { return ::sched_getaffinity(0, sizeof(*set), set) == 0; }
bool set_affinity(const cpu_set_t& set) { return ::sched_setaffinity(0, sizeof(set), &set) == 0; }

}  // namespace

bool WaitStreak::sent(bool alone, std::int64_t now_ns) {
  if (!alone || !waited_) length_ = 0;
  waited_ = false;
  sent_ns_ = now_ns;
  return length_ >= kSteady;
}

void WaitStreak::waited(bool alone, std::int64_t now_ns) {
  if (!alone || now_ns - sent_ns_ > kAtOnceNs) {
    length_ = 0;
  } else if (!waited_ && length_ < kSteady) {
    length_++;
  }
  waited_ = true;
}

bool AskerStreak::asked(std::uint64_t connection, bool waited) {
  if (connection != connection_ || !waited) length_ = 0;
  connection_ = connection;
  if (waited && length_ < kSteady) length_++;
  return length_ >= kSteady;
}

bool AskerStreak::gone(std::uint64_t connection) {
  if (connection != connection_) return false;
  length_ = 0;
  return true;
}

bool CpuHold::take(int cpu) {
  if (cpu >= 0 && cpu == cpu_) return true;
  let_go();
  cpu_set_t allowed;
  if (cpu < 0 || cpu >= CPU_SETSIZE || !affinity(&allowed) ||
      !CPU_ISSET(static_cast<std::size_t>(cpu), &allowed) || !set_affinity(only(cpu))) {
    return false;
  }
  cpu_ = cpu;
  allowed_ = allowed;
  return true;
}

void CpuHold::let_go() {
  if (cpu_ < 0) return;
  cpu_set_t ours = only(cpu_), now;
  cpu_ = -1;
  if (!affinity(&now) || !CPU_EQUAL(&now, &ours)) return;
  // Who may be anywhere is set to be anywhere, not where that is today: a cpuset may grow.
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof(all));
  if (!set_affinity(all) || !affinity(&now) || !CPU_EQUAL(&now, &allowed_)) set_affinity(allowed_);
}

bool CpuFollower::asked(std::uint64_t connection, bool waited, int socket, std::int64_t now_ns) {
  asked_ns_ = now_ns;
  if (!streak_.asked(connection, waited)) {
    hold_.let_go();
    return false;
  }
  int cpu = -1, before = hold_.cpu();
  socklen_t size = sizeof(cpu);
  if (::getsockopt(socket, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) != 0) return false;
  return hold_.take(cpu) && cpu != before;
}

std::int64_t CpuFollower::due_ns() const { return hold_.cpu() < 0 ? kNever : asked_ns_ + kIdleNs; }

std::int64_t CpuFollower::on_timer(std::int64_t now_ns) {
  if (now_ns >= due_ns()) hold_.let_go();
  return due_ns();
}

void CpuFollower::gone(std::uint64_t connection) {
  if (streak_.gone(connection)) hold_.let_go();
}

}  // namespace moonpool
