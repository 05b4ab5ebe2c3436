// CRC-32C (Castagnoli): what every object carries and every whole read is checked against.
// The fastest way of this CPU is chosen once at run time; all ways give the same numbers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace moonpool {

// `seed` is the CRC of the bytes before: crc32c(a + b) == crc32c(b, crc32c(a)). Empty input gives
// the seed back.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t seed = 0);

// Slicing by eight tables, on any CPU.
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t seed = 0);

// CRC of a + b from the CRC of each and the length of b, in O(log length).
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t size_b);

// One way to compute it. `copy` also copies; the CRC is that of the bytes as stored in `dst`,
// and the source is read once only, so a source that changes meanwhile cannot give a torn copy
// with a matching CRC of something else. `stream` is the same past the caches: for what is larger
// than a cache and will not be read again at once. The ranges must not overlap.
struct CrcKernel {
  const char* name;
  std::uint32_t (*crc)(const void* data, std::size_t size, std::uint32_t seed);
  std::uint32_t (*copy)(void* dst, const void* src, std::size_t size, std::uint32_t seed);
  std::uint32_t (*stream)(void* dst, const void* src, std::size_t size, std::uint32_t seed);
};

// Those this CPU can run, fastest first; the last is always the portable one.
std::span<const CrcKernel> crc_kernels();

// Name of the one in use, e.g. "avx512-vpclmulqdq".
const char* crc32c_implementation();

}  // namespace moonpool
