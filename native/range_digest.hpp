// What a cache holds, summed up by range of its blocks' names (the first byte), so that two
// accounts of it can be compared and only what differs be told anew.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace moonpool {

inline constexpr std::size_t kDigestRanges = 256;

struct RangeDigest {
  std::uint64_t names = 0;  // exclusive or
  std::uint64_t count = 0;

  bool operator==(const RangeDigest&) const = default;
};

using RangeDigests = std::array<RangeDigest, kDigestRanges>;
using RangeMarks = std::array<std::uint8_t, kDigestRanges>;  // 1: this range

// From 32 bytes, a bit for each range, the lowest first. False: another size.
inline bool read_marks(std::string_view bits, RangeMarks& marks) {
  if (bits.size() != kDigestRanges / 8) return false;
  for (std::size_t i = 0; i < kDigestRanges; i++) {
    marks[i] = static_cast<std::uint8_t>(bits[i / 8]) >> (i % 8) & 1;
  }
  return true;
}

constexpr std::size_t range_of(std::uint64_t name) { return name >> 56; }

inline void add_name(RangeDigests& to, std::uint64_t name) {
  to[range_of(name)].names ^= name;
  to[range_of(name)].count++;
}

}  // namespace moonpool
