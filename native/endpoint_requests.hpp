// Builds the submissions of the raw and object calls: shapes and bounds are checked here, once,
// before anything is queued. All throw std::invalid_argument for lists of unequal length or out of
// bounds.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "endpoint.hpp"

namespace moonpool {

// The caller's memory of a raw transfer.
struct RawMemory {
  std::uint8_t* memory;
  std::uint64_t size;
};

Submission read_raw(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                    std::span<const std::uint64_t> remote_offsets,
                    std::span<const std::uint64_t> lengths, RawMemory destination,
                    std::span<const std::uint64_t> offsets, std::int64_t deadline_ms,
                    bool checksum);
Submission write_raw(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                     std::span<const std::uint64_t> remote_offsets,
                     std::span<const std::uint64_t> lengths, RawMemory source,
                     std::span<const std::uint64_t> offsets, std::int64_t deadline_ms,
                     bool checksum);
Submission share_region(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                        std::int64_t deadline_ms);

}  // namespace moonpool
