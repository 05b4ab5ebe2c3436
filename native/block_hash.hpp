// Names for token blocks. Both chains are prefix hashes: a block's value covers all tokens before
// it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "sha256.hpp"

namespace moonpool {

// Blocks in `tokens`: whole ones, and with `partial` a shorter last one.
std::size_t block_count(std::size_t tokens, std::size_t block_size, bool partial);

// The content chain: digests[i] = SHA-256(digests[i - 1] ‖ tokens of block i as u32 little-endian),
// where `parent` (empty, or the digest of the block before) stands before the first. `digests` has
// block_count() places.
void block_chain_sha256(std::span<const std::uint8_t> parent, std::span<const std::uint32_t> tokens,
                        std::size_t block_size, std::span<Digest> digests);

// The routing chain, 64 bits: values[i] = mix(values[i - 1] ^ content(block i)), the seed standing
// before the first. content() starts four lanes at kBlockLanes, the first with the number of tokens
// added; takes the block's 64-bit words (two tokens each, the earlier one low, 0 where tokens end)
// in pairs, the lanes in turn: lane = fold(first ^ factor, second ^ lane) with the lane's own of
// kBlockFactors; and is fold(lane 0, lane 1) ^ fold(lane 2, lane 3). fold(a, b) joins both halves
// of the product of 128 bits by exclusive or. Collisions have the odds of 64 random bits. Not meant
// against an adversary. The block contents do not wait for one another, only mix() does.
void block_chain_u64(std::uint64_t seed, std::span<const std::uint32_t> tokens,
                     std::size_t block_size, std::span<std::uint64_t> values);

// One step of that chain: the value after `before` (or the seed) of a block with this content.
std::uint64_t block_content(std::span<const std::uint32_t> block);
std::uint64_t chain_step(std::uint64_t before, std::uint64_t content);

// The first bits of the fractions of the square roots of 2, 3, 5 and 7.
inline constexpr std::uint64_t kBlockLanes[4] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b,
                                                 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1};
// Those of 11, 13, 17 and 19.
inline constexpr std::uint64_t kBlockFactors[4] = {0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                                   0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

}  // namespace moonpool
