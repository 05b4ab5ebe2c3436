// The one 64-bit mixer of the core's tables and chains.
#pragma once
#include <cstdint>

namespace moonpool {

// Stafford's variant 13 of the 64-bit finalizer of MurmurHash3, as in SplitMix64. A bijection.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace moonpool
