// Block ids and raw ranges, checked and turned into offsets in one pass.
#pragma once
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

namespace moonpool {

// out[i] = ids[i] * stride + offset; false for an id outside 0..count-1. The caller made sure that
// count * stride + offset fits into 64 bits.
template <std::integral Id>
bool block_offsets(std::span<const Id> ids, std::uint64_t count, std::uint64_t stride,
                   std::uint64_t offset, std::uint64_t* out) {
  for (const Id id : ids) {
    // A negative id is beyond every count once it is unsigned.
    const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(id));
    if ((std::is_signed_v<Id> ? wide : std::uint64_t{static_cast<std::make_unsigned_t<Id>>(id)}) >=
        count) {
      return false;
    }
    *out++ = static_cast<std::uint64_t>(id) * stride + offset;
  }
  return true;
}

// Sum of the lengths; nothing when a range leaves `nbytes` or the sum passes 2^63. Equally many of
// both. No sum of offset and length is formed, which could wrap.
inline std::optional<std::uint64_t> ranges_inside(std::span<const std::uint64_t> offsets,
                                                  std::span<const std::uint64_t> lengths,
                                                  std::uint64_t nbytes) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] > nbytes || lengths[i] > nbytes - offsets[i]) return std::nullopt;
    if (lengths[i] >= (std::uint64_t{1} << 63) - total) return std::nullopt;
    total += lengths[i];
  }
  return total;
}

}  // namespace moonpool
