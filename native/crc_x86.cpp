// CRC-32C on x86-64: the crc32 instruction in three lanes, and folding with 512-bit carry-less
// multiplication where the CPU has it. Both methods: Gopal et al., "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). All constants are computed here.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>

#include "crc_kernels.hpp"
#include "crc_polynomial.hpp"

#define MOONPOOL_SSE42 __attribute__((target("sse4.2,pclmul")))
#define MOONPOOL_AVX512 __attribute__((target("avx512f,avx512bw,vpclmulqdq,sse4.2,pclmul")))

namespace moonpool::crc {
namespace {

using Bytes = const unsigned char*;

std::uint64_t load(Bytes p) {
  std::uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// A copying pass stores what it loaded, so that what is summed is what was stored; kStream stores
// past the caches and asks for its source ahead of time.
enum class Pass { kRead, kCopy, kStream };

constexpr std::size_t kStreamMin = 4096;  // so little stays in the first cache anyway

// ---- one lane ----

MOONPOOL_SSE42 std::uint32_t one_lane(Bytes p, std::size_t size, std::uint32_t state) {
  std::uint64_t wide = state;
  for (; size >= 8; p += 8, size -= 8) wide = _mm_crc32_u64(wide, load(p));
  state = static_cast<std::uint32_t>(wide);
  for (; size > 0; p++, size--) state = _mm_crc32_u8(state, *p);
  return state;
}

// ---- three lanes: the instruction has a latency of three and a throughput of one ----

// Moves a state over `kBytes` zero bytes: carry-less product with x^(8 kBytes - 33), then the crc32
// instruction reduces the 64-bit product (which stands for 32 more powers and one from reflection).
template <std::size_t kBytes>
MOONPOOL_SSE42 std::uint32_t over_zeros(std::uint32_t state) {
  constexpr std::uint32_t kFactor = x_power(8 * kBytes - 33);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(state)),
                                               _mm_cvtsi32_si128(static_cast<int>(kFactor)), 0);
  const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(product));
  return static_cast<std::uint32_t>(_mm_crc32_u64(0, low));
}

template <std::size_t kLane, Pass kPass>
MOONPOOL_SSE42 std::uint32_t three_lanes(unsigned char*& dst, Bytes& src, std::size_t& size,
                                         std::uint32_t state) {
  constexpr std::size_t kLine = 64;
  while (size >= 3 * kLane) {
    std::array<std::uint64_t, 3> lanes{state, 0, 0};
    for (std::size_t line = 0; line < kLane; line += kLine) {
      for (std::size_t lane = 0; lane < 3; ++lane) {
        // Lanes are short and change places, which the CPU does not foresee.
        _mm_prefetch(reinterpret_cast<const char*>(src) + (lane + 3) * kLane + line, _MM_HINT_T0);
      }
      for (std::size_t at = line; at < line + kLine; at += 8) {
        for (std::size_t lane = 0; lane < 3; ++lane) {
          const std::size_t here = lane * kLane + at;
          const std::uint64_t word = load(src + here);
          if constexpr (kPass == Pass::kStream) {
            _mm_stream_si64(reinterpret_cast<long long*>(dst + here), static_cast<long long>(word));
          }
          lanes[lane] = _mm_crc32_u64(lanes[lane], word);
        }
      }
    }
    state = over_zeros<2 * kLane>(static_cast<std::uint32_t>(lanes[0])) ^
            over_zeros<kLane>(static_cast<std::uint32_t>(lanes[1])) ^
            static_cast<std::uint32_t>(lanes[2]);
    if constexpr (kPass != Pass::kRead) dst += 3 * kLane;
    src += 3 * kLane;
    size -= 3 * kLane;
  }
  return state;
}

template <Pass kPass>
MOONPOOL_SSE42 std::uint32_t lanes_all(unsigned char* dst, Bytes src, std::size_t size,
                                       std::uint32_t seed) {
  std::uint32_t state = ~seed;
  if constexpr (kPass == Pass::kStream) {  // a store past the caches is of a whole aligned word
    const std::size_t head = std::min(size, (0 - reinterpret_cast<std::uintptr_t>(dst)) & 63);
    std::memcpy(dst, src, head);
    state = one_lane(dst, head, state);
    dst += head;
    src += head;
    size -= head;
  }
  state = three_lanes<1024, kPass>(dst, src, size, state);
  state = three_lanes<128, kPass>(dst, src, size, state);
  if constexpr (kPass != Pass::kRead) std::memcpy(dst, src, size);
  return ~one_lane(kPass == Pass::kRead ? src : dst, size, state);
}

MOONPOOL_SSE42 std::uint32_t crc_sse42(const void* data, std::size_t size, std::uint32_t seed) {
  return lanes_all<Pass::kRead>(nullptr, static_cast<Bytes>(data), size, seed);
}

MOONPOOL_SSE42 std::uint32_t stream_sse42(void* dst, const void* src, std::size_t size,
                                          std::uint32_t seed) {
  if (size < kStreamMin) return copy_in_pieces<crc_sse42>(dst, src, size, seed);
  const auto crc = lanes_all<Pass::kStream>(static_cast<unsigned char*>(dst),
                                            static_cast<Bytes>(src), size, seed);
  _mm_sfence();  // streaming stores are not ordered by a later release store
  return crc;
}

// ---- folding: sixteen bytes stand for themselves times a power of x ----

// The two factors that move a 128-bit part `kBits` onward: one for its first eight bytes, one for
// the last. Reflected products come out one bit short, hence the -1.
template <std::uint64_t kBits>
MOONPOOL_AVX512 __m512i fold_factors() {
  constexpr auto kFirst = static_cast<long long>(std::uint64_t{x_power(kBits + 63)} << 32);
  constexpr auto kLast = static_cast<long long>(std::uint64_t{x_power(kBits - 1)} << 32);
  return _mm512_set_epi64(kLast, kFirst, kLast, kFirst, kLast, kFirst, kLast, kFirst);
}

MOONPOOL_AVX512 inline __m512i fold(__m512i part, __m512i factors, __m512i next) {
  const __m512i first = _mm512_clmulepi64_epi128(part, factors, 0x00);
  const __m512i last = _mm512_clmulepi64_epi128(part, factors, 0x11);
  return _mm512_ternarylogic_epi64(first, last, next, 0x96);  // a ^ b ^ c
}

constexpr std::size_t kWide = 512;  // eight accumulators hide the multiplier's latency

// Loads 64 bytes, and stores them in a copying pass; in kStream `dst` is aligned.
template <Pass kPass>
MOONPOOL_AVX512 inline __m512i take(unsigned char* dst, Bytes src) {
  const __m512i bytes = _mm512_loadu_si512(src);
  if constexpr (kPass == Pass::kCopy) _mm512_storeu_si512(dst, bytes);
  if constexpr (kPass == Pass::kStream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), bytes);
    _mm_prefetch(reinterpret_cast<const char*>(src) + 1024, _MM_HINT_T0);
  }
  return bytes;
}

template <Pass kPass>
MOONPOOL_AVX512 std::uint32_t fold_all(unsigned char* dst, Bytes src, std::size_t size,
                                       std::uint32_t seed) {
  constexpr bool kCopy = kPass != Pass::kRead;
  std::uint32_t state = ~seed;
  const auto advance = [&](std::size_t count) {
    if constexpr (kCopy) dst += count;
    src += count;
    size -= count;
  };
  const auto plain = [&](std::size_t count) MOONPOOL_AVX512 {
    if (count == 0) return;
    if constexpr (kCopy) std::memcpy(dst, src, count);
    state = one_lane(kCopy ? dst : src, count, state);
    advance(count);
  };

  if (size < kWide) {
    plain(size);
    return ~state;
  }
  const auto target = reinterpret_cast<std::uintptr_t>(kCopy ? dst : src);
  if (const std::size_t head = (0 - target) & 63; head != 0 && size >= kWide + 64) plain(head);

  __m512i part[8];
  for (int i = 0; i < 8; i++) part[i] = take<kPass>(kCopy ? dst + 64 * i : nullptr, src + 64 * i);
  part[0] =
      _mm512_xor_si512(part[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  advance(kWide);
  const __m512i by_wide = fold_factors<8 * kWide>();
  while (size >= kWide) {
    for (int i = 0; i < 8; i++) {
      part[i] = fold(part[i], by_wide, take<kPass>(kCopy ? dst + 64 * i : nullptr, src + 64 * i));
    }
    advance(kWide);
  }
  const __m512i by_one = fold_factors<512>();
  const __m512i by_two = fold_factors<1024>();
  const __m512i by_four = fold_factors<2048>();
  for (int i = 0; i < 8; i += 2) part[i] = fold(part[i], by_one, part[i + 1]);
  for (int i = 0; i < 8; i += 4) part[i] = fold(part[i], by_two, part[i + 2]);
  part[0] = fold(part[0], by_four, part[4]);
  while (size >= 64) {
    part[0] = fold(part[0], by_one, take<kPass>(dst, src));
    advance(64);
  }
  // What remains is a message of 64 bytes with the same remainder as all bytes so far.
  alignas(64) std::array<unsigned char, 64> rest;
  _mm512_store_si512(rest.data(), part[0]);
  state = one_lane(rest.data(), rest.size(), 0);
  plain(size);
  return ~state;
}

std::uint32_t crc_avx512(const void* data, std::size_t size, std::uint32_t seed) {
  return fold_all<Pass::kRead>(nullptr, static_cast<Bytes>(data), size, seed);
}

std::uint32_t copy_avx512(void* dst, const void* src, std::size_t size, std::uint32_t seed) {
  return fold_all<Pass::kCopy>(static_cast<unsigned char*>(dst), static_cast<Bytes>(src), size,
                               seed);
}

std::uint32_t stream_avx512(void* dst, const void* src, std::size_t size, std::uint32_t seed) {
  if (size < kStreamMin) return copy_avx512(dst, src, size, seed);
  const auto crc = fold_all<Pass::kStream>(static_cast<unsigned char*>(dst),
                                           static_cast<Bytes>(src), size, seed);
  _mm_sfence();  // streaming stores are not ordered by a later release store
  return crc;
}

}  // namespace

void add_x86_kernels(std::vector<CrcKernel>& kernels) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("vpclmulqdq")) {
    kernels.push_back({"avx512-vpclmulqdq", crc_avx512, copy_avx512, stream_avx512});
  }
  kernels.push_back({"sse4.2-pclmulqdq", crc_sse42, copy_in_pieces<crc_sse42>, stream_sse42});
}

}  // namespace moonpool::crc
#endif
