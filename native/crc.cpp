// The portable CRC-32C, combination, and the choice of a kernel.
#include "crc.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "crc_kernels.hpp"
#include "crc_polynomial.hpp"

namespace moonpool {
namespace {

static_assert(std::endian::native == std::endian::little, "Moonpool needs a little-endian CPU");

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b] is the CRC state of byte b followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; byte++) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; bit++) state = crc::times_x(state);
    tables[0][byte] = state;
  }
  for (std::size_t k = 1; k < 8; k++) {
    for (std::size_t byte = 0; byte < 256; byte++) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

const std::vector<CrcKernel>& kernels() {
  static const std::vector<CrcKernel> usable = [] {
    std::vector<CrcKernel> found;
#if defined(__x86_64__)
    crc::add_x86_kernels(found);
#elif defined(__aarch64__)
    crc::add_arm_kernels(found);
#endif
    found.push_back({"portable", crc32c_portable, crc::copy_in_pieces<crc32c_portable>,
                     crc::copy_in_pieces<crc32c_portable>});
    return found;
  }();
  return usable;
}

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t seed) {
  auto p = static_cast<const unsigned char*>(data);
  std::uint32_t state = ~seed;
  for (; size >= 8; p += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= state;
    state = 0;
    for (std::size_t k = 0; k < 8; k++) state ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; size > 0; p++, size--) state = (state >> 8) ^ kTables[0][(state ^ *p) & 0xFF];
  return ~state;
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t size_b) {
  return crc::multiply(crc_a, crc::byte_shift(size_b)) ^ crc_b;
}

std::span<const CrcKernel> crc_kernels() { return kernels(); }

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t seed) {
  static const auto best = kernels().front().crc;
  return best(data, size, seed);
}

const char* crc32c_implementation() { return kernels().front().name; }

}  // namespace moonpool
