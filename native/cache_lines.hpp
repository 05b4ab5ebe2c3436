// Cache lines of memory that no hardware keeps coherent between hosts: written back after a store,
// dropped before a load. Only whole lines move, so bytes of different writers must not share one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "block_copy.hpp"

namespace moonpool {

// Bytes of a cache line of this CPU.
std::size_t cache_line_bytes();

// Writes the lines of these blocks back to memory; they may stay cached. Returns how many lines,
// once all have left the CPU. Throws std::out_of_range for a block outside `memory`, before any.
std::uint64_t write_back(Range memory, std::span<const std::uint64_t> offsets,
                         std::span<const std::uint64_t> lengths);

// Writes the lines back and drops them, so that the next load asks the memory. As above.
std::uint64_t invalidate(Range memory, std::span<const std::uint64_t> offsets,
                         std::span<const std::uint64_t> lengths);

}  // namespace moonpool
