#include "copy.hpp"

#include "crc.hpp"

namespace moonpool {

std::uint32_t copy_crc32c(void* dst, const void* src, std::size_t size, std::uint32_t seed,
                          Caching caching) {
  static const CrcKernel best = crc_kernels().front();
  const bool past =
      caching == Caching::kPast || (caching == Caching::kBySize && size >= kStreamBytes);
  return past ? best.stream(dst, src, size, seed) : best.copy(dst, src, size, seed);
}

}  // namespace moonpool
