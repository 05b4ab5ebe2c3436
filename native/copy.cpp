#include "copy.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "crc.hpp"
#include "prefetch.hpp"

namespace moonpool {

std::uint32_t copy_crc32c(void* dst, const void* src, std::size_t size, std::uint32_t seed,
                          Caching caching) {
  static const CrcKernel best = crc_kernels().front();
  const bool past =
      caching == Caching::kPast || (caching == Caching::kBySize && size >= kStreamBytes);
  return past ? best.stream(dst, src, size, seed) : best.copy(dst, src, size, seed);
}

namespace {

// Where a reader stands in the pieces.
struct Cursor {
  const CopyPiece* piece;
  const CopyPiece* end;
  std::size_t at = 0;  // in it

  // The most that lies together from here on, `limit` at the most; 0 when nothing is wanted.
  std::size_t together(std::size_t limit) {
    while (limit > 0 && at == piece->size) {
      piece++;
      at = 0;
    }
    return limit > 0 ? std::min(limit, piece->size - at) : 0;
  }
  void skip(std::size_t bytes) {
    while (bytes > 0) {
      const std::size_t here = together(bytes);
      at += here;
      bytes -= here;
    }
  }
  void copy(std::uint8_t* to, std::size_t bytes) {
    while (bytes > 0) {
      const std::size_t here = together(bytes);
      std::memcpy(to, piece->data + at, here);
      at += here;
      to += here;
      bytes -= here;
    }
  }
};

#if defined(__x86_64__)

constexpr std::size_t kLine = 64;
constexpr std::size_t kStreams = 4;      // read at the same time: one alone keeps memory half busy
constexpr std::size_t kRun = 8 * kLine;  // of one stream, before it is the next one's turn

void stream_lines(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 16) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), part);
  }
}

// `to` is aligned to a line, `bytes` are whole lines; pieces may end within one.
void stream(Cursor& from, std::uint8_t* to, std::size_t bytes) {
  while (bytes > 0) {
    std::size_t here = from.together(bytes) / kLine * kLine;
    // Finding the next piece's page takes long where it is none of the neighbours.
    if (from.at == 0 && from.piece + 1 < from.end) prefetch(from.piece[1].data);
    if (here > 0) {
      stream_lines(to, from.piece->data + from.at, here);
      from.at += here;
    } else {
      std::uint8_t line[kLine];
      here = kLine;
      from.copy(line, kLine);
      stream_lines(to, line, kLine);
    }
    to += here;
    bytes -= here;
  }
}

#endif

}  // namespace

void copy_past_caches(void* dst, std::span<const CopyPiece> pieces) {
  auto* to = static_cast<std::uint8_t*>(dst);
  std::size_t left = 0;
  for (const CopyPiece& piece : pieces) left += piece.size;
  Cursor from{pieces.data(), pieces.data() + pieces.size()};
#if defined(__x86_64__)
  const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) & (kLine - 1);
  if (left >= head + kLine) {
    from.copy(to, head);
    to += head;
    left -= head;
    // Streams lie a quarter of the whole apart, not a page: neighbouring pages in turns are fast on
    // one maker's cores and slower than memcpy on another's.
    const std::size_t part = left / kStreams / kRun * kRun;
    Cursor streams[kStreams];
    for (std::size_t i = 0; i < kStreams; i++) {
      streams[i] = from;
      from.skip(part);
    }
    for (std::size_t run = 0; run < part; run += kRun) {
      for (std::size_t i = 0; i < kStreams; i++) stream(streams[i], to + i * part + run, kRun);
    }
    to += kStreams * part;
    left -= kStreams * part;
    const std::size_t rest = left / kLine * kLine;
    stream(from, to, rest);
    to += rest;
    left -= rest;
    _mm_sfence();  // streaming stores are not ordered by a later release store
  }
#endif
  from.copy(to, left);
}

}  // namespace moonpool
