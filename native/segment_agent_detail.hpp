// Small things that the agent's source files share.
#pragma once
#include <time.h>

#include "mix.hpp"
#include "segment_agent.hpp"

namespace moonpool {

inline std::int64_t boottime_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

inline std::int64_t resolve(std::int64_t now_ns) {
  return now_ns == kNowNs ? boottime_ns() : now_ns;
}

inline std::uint64_t version_hash(std::uint64_t term, std::uint64_t seq) {
  return mix64(mix64(term) ^ seq);
}

inline std::size_t index_of(SlotState state) { return static_cast<std::size_t>(state); }

inline std::uint64_t term_of(const Superblock& superblock) {
  return superblock.terms[superblock.term_index.load(std::memory_order_acquire) & 1].term;
}

}  // namespace moonpool
