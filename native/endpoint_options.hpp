// Limits of an endpoint, and what it counts. Every bound of the data plane has its name here.
#pragma once
#include <atomic>
#include <cstdint>

namespace moonpool {

struct EndpointOptions {
  std::uint32_t frame_blocks_max = 65536;
  std::uint32_t frame_meta_bytes_max = 64u << 20;
  std::uint64_t frame_payload_bytes_max = std::uint64_t{1} << 40;
  std::uint32_t connections_max = 4096;           // accepted ones
  std::uint32_t connections_per_peer_max = 1024;  // of one address; files and tunnels have none
  std::uint32_t regions_max = 65536;
  std::uint32_t segments_max = 1024;
  std::uint32_t claims_max = 65536;  // open on one connection, made for no client row
  std::uint32_t ops_max = 4096;      // in flight on one connection
  std::uint32_t replies_max = 64;    // waiting on one accepted connection; then it is not read
  // Moved for one connection before the others have their turn: a frame of a MiB takes one.
  std::uint32_t turn_bytes = (1u << 20) + (64u << 10);
  std::uint32_t piece_bytes = 256u << 10;  // moved and checksummed while in cache
  // From peers, that nobody has taken yet; 0: none is taken in.
  std::uint32_t notifications_max = 0;
  bool share_cpu = true;  // with a peer on loopback, as cpu_share.hpp says
  std::uint32_t hello_ms = 2000;
  std::uint32_t deadline_ms = 5000;  // of an op that names none
  std::uint32_t deadline_max_ms = 3'600'000;
  std::uint32_t stall_ms =
      10'000;  // a frame not over this long after its deadline ends its connection
};

struct EndpointCounters {
  std::atomic<std::uint64_t> bytes_in{0}, bytes_out{0};
  std::atomic<std::uint64_t> requests_served{0}, blocks_served{0}, replies_received{0};
  std::atomic<std::uint64_t> ops_submitted{0}, ops_done{0}, ops_failed{0}, ops_cancelled{0},
      ops_expired{0}, ops_over_limit{0};
  std::atomic<std::uint64_t> connections_accepted{0}, connections_open{0}, connections_made{0},
      connections_over_limit{0};
  std::atomic<std::uint64_t> hellos_refused{0}, hellos_timed_out{0}, protocol_errors{0}, stalls{0},
      reads_paused{0}, waits_on_shared_cpu{0}, cpu_moves{0};
};

inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t n = 1) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

}  // namespace moonpool
