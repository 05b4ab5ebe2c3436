// CRC-32C on 64-bit ARM: the crc32c instructions in three lanes.
#if defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>

#include "crc_kernels.hpp"
#include "crc_polynomial.hpp"

#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

#define MOONPOOL_CRC __attribute__((target("+crc")))

namespace moonpool::crc {
namespace {

using Bytes = const unsigned char*;

std::uint64_t load(Bytes p) {
  std::uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// Lanes are long because joining two costs a polynomial product in plain instructions.
constexpr std::size_t kLane = 2048;
constexpr std::uint32_t kOverOne = byte_shift(kLane);
constexpr std::uint32_t kOverTwo = byte_shift(2 * kLane);

MOONPOOL_CRC std::uint32_t crc_arm(const void* data, std::size_t size, std::uint32_t seed) {
  auto p = static_cast<Bytes>(data);
  std::uint32_t state = ~seed;
  while (size >= 3 * kLane) {
    std::uint32_t second = 0;
    std::uint32_t third = 0;
    for (std::size_t at = 0; at < kLane; at += 8) {
      state = __crc32cd(state, load(p + at));
      second = __crc32cd(second, load(p + kLane + at));
      third = __crc32cd(third, load(p + 2 * kLane + at));
    }
    state = multiply(state, kOverTwo) ^ multiply(second, kOverOne) ^ third;
    p += 3 * kLane;
    size -= 3 * kLane;
  }
  for (; size >= 8; p += 8, size -= 8) state = __crc32cd(state, load(p));
  for (; size > 0; p++, size--) state = __crc32cb(state, *p);
  return ~state;
}

}  // namespace

void add_arm_kernels(std::vector<CrcKernel>& kernels) {
  if ((getauxval(AT_HWCAP) & HWCAP_CRC32) == 0) return;
  kernels.push_back({"arm-crc32c", crc_arm, copy_in_pieces<crc_arm>, copy_in_pieces<crc_arm>});
}

}  // namespace moonpool::crc
#endif
