// Arithmetic modulo the CRC-32C polynomial, usable in constant expressions. A polynomial of degree
// below 32 is a word with the coefficient of x^0 in the highest bit, as CRC-32C itself orders bits.
#pragma once
#include <cstdint>

namespace moonpool::crc {

inline constexpr std::uint32_t kPolynomial = 0x82F63B78;
inline constexpr std::uint32_t kOne = 0x80000000;

constexpr std::uint32_t times_x(std::uint32_t a) {
  return (a >> 1) ^ (kPolynomial & (0u - (a & 1u)));
}

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = times_x(b);
  }
  return product;
}

constexpr std::uint32_t x_power(std::uint64_t exponent) {
  std::uint32_t result = kOne;
  std::uint32_t square = times_x(kOne);
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

// x^(8 * bytes), without overflow for any length.
constexpr std::uint32_t byte_shift(std::uint64_t bytes) {
  std::uint32_t result = kOne;
  std::uint32_t square = x_power(8);
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

}  // namespace moonpool::crc
