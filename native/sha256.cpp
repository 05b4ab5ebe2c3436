#include "sha256.hpp"

#include <bit>
#include <cstring>

#include "sha256_constants.hpp"

namespace moonpool {
namespace {

std::uint32_t load_big_endian(const std::uint8_t* p) {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return __builtin_bswap32(word);
}

}  // namespace

void sha256_compress_portable(std::uint32_t* state, const std::uint8_t* blocks, std::size_t count) {
  using std::rotr;
  for (; count > 0; count--, blocks += 64) {
    std::uint32_t w[64];
    for (int i = 0; i < 16; i++) w[i] = load_big_endian(blocks + 4 * i);
    for (int i = 16; i < 64; i++) {
      const std::uint32_t x = w[i - 15];
      const std::uint32_t y = w[i - 2];
      w[i] = w[i - 16] + (rotr(x, 7) ^ rotr(x, 18) ^ (x >> 3)) + w[i - 7] +
             (rotr(y, 17) ^ rotr(y, 19) ^ (y >> 10));
    }
    std::uint32_t v[8];
    std::memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
      const auto [a, b, c, d, e, f, g, h] = v;
      const std::uint32_t t1 = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                               kSha256Rounds[i] + w[i];
      const std::uint32_t t2 =
          (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      const std::uint32_t next[8] = {t1 + t2, a, b, c, d + t1, e, f, g};
      std::memcpy(v, next, sizeof v);
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
  }
}

void sha256_compress(Sha256State& state, const std::uint8_t* blocks, std::size_t count) {
  static const Sha256Compress best = [] {
    const Sha256Compress hardware = sha256_compress_hardware();
    return hardware != nullptr ? hardware : sha256_compress_portable;
  }();
  best(state.data(), blocks, count);
}

Digest sha256_digest(const Sha256State& state) {
  Sha256State big_endian;
  for (std::size_t i = 0; i < state.size(); i++) big_endian[i] = __builtin_bswap32(state[i]);
  Digest digest;
  std::memcpy(digest.data(), big_endian.data(), digest.size());
  return digest;
}

void Sha256::update(const void* data, std::size_t size) {
  if (size == 0) return;
  auto p = static_cast<const std::uint8_t*>(data);
  const std::size_t held = size_ % 64;
  size_ += size;
  if (held > 0) {
    const std::size_t taken = size < 64 - held ? size : 64 - held;
    std::memcpy(pending_.data() + held, p, taken);
    if (held + taken < 64) return;
    sha256_compress(state_, pending_.data(), 1);
    p += taken;
    size -= taken;
  }
  sha256_compress(state_, p, size / 64);
  std::memcpy(pending_.data(), p + size / 64 * 64, size % 64);
}

Digest Sha256::finish() {
  std::uint8_t tail[128] = {};
  const std::size_t held = size_ % 64;
  std::memcpy(tail, pending_.data(), held);
  tail[held] = 0x80;
  const std::size_t blocks = held < 56 ? 1 : 2;
  const std::uint64_t bits = __builtin_bswap64(size_ * 8);
  std::memcpy(tail + 64 * blocks - sizeof bits, &bits, sizeof bits);
  sha256_compress(state_, tail, blocks);
  return sha256_digest(state_);
}

Digest sha256(const void* data, std::size_t size) {
  Sha256 hash;
  hash.update(data, size);
  return hash.finish();
}

Digest hmac_sha256(const void* key, std::size_t key_size, const void* data, std::size_t size) {
  std::array<std::uint8_t, 64> inner{};
  if (key_size > inner.size()) {
    const Digest digest = sha256(key, key_size);
    std::memcpy(inner.data(), digest.data(), digest.size());
  } else if (key_size > 0) {
    std::memcpy(inner.data(), key, key_size);
  }
  std::array<std::uint8_t, 64> outer = inner;
  for (auto& byte : inner) byte ^= 0x36;
  for (auto& byte : outer) byte ^= 0x5c;
  Sha256 first;
  first.update(inner.data(), inner.size());
  first.update(data, size);
  const Digest middle = first.finish();
  Sha256 second;
  second.update(outer.data(), outer.size());
  second.update(middle.data(), middle.size());
  return second.finish();
}

bool equal_digests(const Digest& a, const Digest& b) {
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); i++) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace moonpool
