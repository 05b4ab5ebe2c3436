#include "copy.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "crc.hpp"

namespace moonpool {

std::uint32_t copy_crc32c(void* dst, const void* src, std::size_t size, std::uint32_t seed,
                          Caching caching) {
  static const CrcKernel best = crc_kernels().front();
  const bool past =
      caching == Caching::kPast || (caching == Caching::kBySize && size >= kStreamBytes);
  return past ? best.stream(dst, src, size, seed) : best.copy(dst, src, size, seed);
}

#if defined(__x86_64__)
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kStreams = 4;      // read at the same time: one alone keeps memory half busy
constexpr std::size_t kRun = 8 * kLine;  // of one stream, before it is the next one's turn

// `to` is aligned to a line, `bytes` are whole lines.
void stream_lines(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 16) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), part);
  }
}

}  // namespace
#endif

void copy_past_caches(void* dst, const void* src, std::size_t size) {
  auto* to = static_cast<unsigned char*>(dst);
  auto* from = static_cast<const unsigned char*>(src);
#if defined(__x86_64__)
  if (size >= 2 * kLine) {
    const auto advance = [&](std::size_t bytes) {
      to += bytes;
      from += bytes;
      size -= bytes;
    };
    const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) & (kLine - 1);
    std::memcpy(to, from, head);
    advance(head);
    // Streams lie a quarter of the whole apart, not a page: neighbouring pages in turns are fast on
    // one maker's cores and slower than memcpy on another's.
    const std::size_t part = size / kStreams / kRun * kRun;
    for (std::size_t run = 0; run < part; run += kRun) {
      for (std::size_t from_part = run; from_part < kStreams * part; from_part += part) {
        stream_lines(to + from_part, from + from_part, kRun);
      }
    }
    advance(kStreams * part);
    const std::size_t rest = size / kLine * kLine;
    stream_lines(to, from, rest);
    advance(rest);
    _mm_sfence();  // streaming stores are not ordered by a later release store
  }
#endif
  std::memcpy(to, from, size);
}

}  // namespace moonpool
