// SHA-256 with the SHA instructions of x86-64. Two registers hold the state as the instruction
// wants it: a, b, e, f and c, d, g, h.
#include "sha256.hpp"
#include "sha256_constants.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define MOONPOOL_SHA __attribute__((target("sha,sse4.1,ssse3")))

namespace moonpool {
namespace {

MOONPOOL_SHA void compress_sha_ni(std::uint32_t* state, const std::uint8_t* blocks,
                                  std::size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const auto words = reinterpret_cast<__m128i*>(state);
  const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xB1);
  const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);

  for (; count > 0; count--, blocks += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; i++) {
      const auto at = reinterpret_cast<const __m128i*>(blocks + 16 * i);
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(at), big_endian);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {  // four rounds each
      if (i >= 4) {
        const __m128i from_seven = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
        const __m128i sum =
            _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), from_seven);
        w[i % 4] = _mm_sha256msg2_epu32(sum, w[(i + 3) % 4]);
      }
      const auto constants = reinterpret_cast<const __m128i*>(kSha256Rounds + 4 * i);
      const __m128i input = _mm_add_epi32(w[i % 4], _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, input);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(input, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }

  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 29)) != 0 &&
         __builtin_cpu_supports("sse4.1");
}

}  // namespace

Sha256Compress sha256_compress_hardware() { return has_sha() ? compress_sha_ni : nullptr; }

}  // namespace moonpool
#else
namespace moonpool {
Sha256Compress sha256_compress_hardware() { return nullptr; }
}  // namespace moonpool
#endif
