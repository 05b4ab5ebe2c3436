// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), with the CPU's SHA instructions where it has
// them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace moonpool {

using Digest = std::array<std::uint8_t, 32>;

// For callers that lay out a whole padded message themselves: start here, compress, and turn the
// state into a digest.
using Sha256State = std::array<std::uint32_t, 8>;
inline constexpr Sha256State kSha256Initial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
void sha256_compress(Sha256State& state, const std::uint8_t* blocks, std::size_t count);
Digest sha256_digest(const Sha256State& state);

class Sha256 {
 public:
  void update(const void* data, std::size_t size);
  // Ends the message. The object is spent afterwards.
  Digest finish();

 private:
  Sha256State state_ = kSha256Initial;
  std::array<std::uint8_t, 64> pending_{};
  std::uint64_t size_ = 0;
};

Digest sha256(const void* data, std::size_t size);
Digest hmac_sha256(const void* key, std::size_t key_size, const void* data, std::size_t size);

// In a time that does not depend on where two digests differ.
bool equal_digests(const Digest& a, const Digest& b);

// Mixes whole blocks of 64 bytes into a state.
using Sha256Compress = void (*)(std::uint32_t* state, const std::uint8_t* blocks,
                                std::size_t count);
void sha256_compress_portable(std::uint32_t* state, const std::uint8_t* blocks, std::size_t count);
// Of this CPU's SHA instructions; null where it has none.
Sha256Compress sha256_compress_hardware();

}  // namespace moonpool
