#include "block_hash.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "mix.hpp"

namespace moonpool {
namespace {

std::uint64_t word_at(const std::uint32_t* tokens) {
  std::uint64_t word;
  std::memcpy(&word, tokens, sizeof word);
  return word;
}

// Both halves of the product; one multiplication takes in two words.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::span<const std::uint32_t> block_at(std::span<const std::uint32_t> tokens,
                                        std::size_t block_size, std::size_t i) {
  const std::size_t begin = i * block_size;
  return tokens.subspan(begin, std::min(block_size, tokens.size() - begin));
}

// A prior digest and a whole block, laid out with SHA-256's padding once for the whole chain: short
// blocks would otherwise spend more time on buffering than on hashing.
class ChainMessage {
 public:
  explicit ChainMessage(std::size_t block_bytes) : bytes_(sizeof(Digest) + block_bytes) {
    const std::uint64_t bits = __builtin_bswap64(std::uint64_t{bytes_.size()} * 8);
    bytes_.push_back(0x80);
    while ((bytes_.size() + sizeof bits) % 64 != 0) bytes_.push_back(0);
    const auto length = reinterpret_cast<const std::uint8_t*>(&bits);
    bytes_.insert(bytes_.end(), length, length + sizeof bits);
  }

  Digest hash(std::span<const std::uint8_t> prior, std::span<const std::uint32_t> block) {
    std::memcpy(bytes_.data(), prior.data(), sizeof(Digest));
    std::memcpy(bytes_.data() + sizeof(Digest), block.data(), block.size_bytes());
    Sha256State state = kSha256Initial;
    sha256_compress(state, bytes_.data(), bytes_.size() / 64);
    return sha256_digest(state);
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

std::uint64_t block_content(std::span<const std::uint32_t> block) {
  std::uint64_t lanes[4] = {kBlockLanes[0] + block.size(), kBlockLanes[1], kBlockLanes[2],
                            kBlockLanes[3]};
  const std::uint32_t* p = block.data();
  std::size_t left = block.size();
  for (; left >= 16; left -= 16, p += 16) {
    for (std::size_t k = 0; k < 4; k++) {
      lanes[k] = fold(word_at(p + 4 * k) ^ kBlockFactors[k], word_at(p + 4 * k + 2) ^ lanes[k]);
    }
  }
  for (std::size_t k = 0; left > 0; k++) {
    const std::size_t count = std::min<std::size_t>(left, 4);
    std::uint64_t pair[2] = {0, 0};
    std::memcpy(pair, p, count * sizeof *p);
    lanes[k] = fold(pair[0] ^ kBlockFactors[k], pair[1] ^ lanes[k]);
    left -= count;
    p += count;
  }
  return fold(lanes[0], lanes[1]) ^ fold(lanes[2], lanes[3]);
}

std::uint64_t chain_step(std::uint64_t before, std::uint64_t content) {
  return mix64(before ^ content);
}

std::size_t block_count(std::size_t tokens, std::size_t block_size, bool partial) {
  return tokens / block_size + (partial && tokens % block_size != 0 ? 1 : 0);
}

void block_chain_sha256(std::span<const std::uint8_t> parent, std::span<const std::uint32_t> tokens,
                        std::size_t block_size, std::span<Digest> digests) {
  const std::size_t whole = std::min(block_size, tokens.size());
  ChainMessage message(whole * sizeof(std::uint32_t));
  for (std::size_t i = 0; i < digests.size(); i++) {
    const auto block = block_at(tokens, block_size, i);
    const std::span<const std::uint8_t> prior = i == 0 ? parent : digests[i - 1];
    if (prior.size() == sizeof(Digest) && block.size() == whole) {
      digests[i] = message.hash(prior, block);
      continue;
    }
    Sha256 hash;
    hash.update(prior.data(), prior.size());
    hash.update(block.data(), block.size_bytes());
    digests[i] = hash.finish();
  }
}

void block_chain_u64(std::uint64_t seed, std::span<const std::uint32_t> tokens,
                     std::size_t block_size, std::span<std::uint64_t> values) {
  for (std::size_t i = 0; i < values.size(); i++) {
    seed = chain_step(seed, block_content(block_at(tokens, block_size, i)));
    values[i] = seed;
  }
}

}  // namespace moonpool
