#include "crc.hpp"
namespace moonpool {
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t seed) {
  auto p = static_cast<const unsigned char*>(data);
  std::uint32_t crc = ~seed;
  while (size--) {
    crc ^= *p++;
    for (int k = 0; k < 8; k++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1u)));
  }
  return ~crc;
}
}  // namespace moonpool
