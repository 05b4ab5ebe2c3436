#include "own_process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace moonpool {
namespace {

std::atomic<pid_t> number{0};  // 0: not asked for yet

void look() { number.store(::getpid(), std::memory_order_relaxed); }

}  // namespace

pid_t own_process() {
  const pid_t known = number.load(std::memory_order_relaxed);
  if (known != 0) return known;
  static const bool told_of_forks = ::pthread_atfork(nullptr, nullptr, look) == 0;
  if (!told_of_forks) return ::getpid();
  look();
  return number.load(std::memory_order_relaxed);
}

}  // namespace moonpool
