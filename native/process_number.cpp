#include "process_number.hpp"

#include <pthread.h>

#include <atomic>

namespace moonpool {
namespace {

std::atomic<std::uint64_t> number{1};

[[maybe_unused]] const int told_of_forks =
    ::pthread_atfork(nullptr, nullptr, [] { number.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t process_number() { return number.load(std::memory_order_relaxed); }

}  // namespace moonpool
