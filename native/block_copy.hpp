// Copies lists of blocks between two ranges of mapped memory: the local and shared-memory
// transports. Bounds are checked for the whole list before the first byte moves.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "status.hpp"

namespace moonpool {

// Memory that somebody else keeps alive and mapped while a BlockCopy runs.
struct Range {
  std::byte* data = nullptr;
  std::size_t size = 0;
};

class BlockCopy {
 public:
  // Three lists of equal length n. Throws std::out_of_range for a block outside its range.
  BlockCopy(Range dst, std::span<const std::uint64_t> dst_offsets, Range src,
            std::span<const std::uint64_t> src_offsets, std::span<const std::uint64_t> lengths,
            bool checksum);

  // Copies in list order, on the calling thread. Between pieces of kPieceBytes it looks whether it
  // was cancelled or the deadline (CLOCK_MONOTONIC) has passed; then the blocks not finished get
  // kCancelled or kExpired, which is also returned. Runs once.
  Status run(std::int64_t deadline_ns);

  // From any thread; the copy has stopped when run() has returned.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  const std::vector<std::uint8_t>& status() const { return status_; }
  const std::vector<std::uint32_t>& crc() const { return crc_; }

  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

 private:
  struct Block {
    std::byte* dst;
    const std::byte* src;
    std::size_t size;
  };

  Status copy_block(const Block& block, std::uint32_t* crc, std::int64_t deadline_ns);
  Status interrupted(std::int64_t deadline_ns) const;

  std::vector<Block> blocks_;
  std::vector<std::uint8_t> status_;
  std::vector<std::uint32_t> crc_;   // empty without checksum
  std::size_t unchecked_bytes_ = 0;  // copied since the last look at the clock
  std::atomic<bool> cancelled_{false};
  const bool past_caches_;
};

}  // namespace moonpool
