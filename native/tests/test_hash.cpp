// SHA-256 by both ways against FIPS 180-4's examples and each other; the chains by their
// definition.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "block_hash.hpp"
#include "check.hpp"
#include "sha256.hpp"

namespace {

using moonpool::Digest;

std::string hex(const Digest& digest) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (const auto byte : digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

std::vector<std::uint32_t> random_tokens(std::size_t count) {
  std::mt19937 random(4);
  std::vector<std::uint32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::uint32_t>(random());
  return tokens;
}

}  // namespace

TEST(sha256_of_the_standards_examples) {
  CHECK_EQ(hex(moonpool::sha256("", 0)),
           std::string("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
  CHECK_EQ(hex(moonpool::sha256("abc", 3)),
           std::string("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
}

TEST(hardware_and_portable_rounds_agree) {
  const auto hardware = moonpool::sha256_compress_hardware();
  if (hardware == nullptr) return;
  const auto input = random_tokens(16 * 5);
  const auto bytes = reinterpret_cast<const std::uint8_t*>(input.data());
  for (std::size_t blocks = 0; blocks <= 5; blocks++) {
    std::uint32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 0xFFFFFFFF};
    std::uint32_t b[8] = {1, 2, 3, 4, 5, 6, 7, 0xFFFFFFFF};
    hardware(a, bytes, blocks);
    moonpool::sha256_compress_portable(b, bytes, blocks);
    for (int i = 0; i < 8; i++) CHECK_EQ(a[i], b[i]);
  }
}

TEST(a_message_in_parts_hashes_like_the_whole) {
  const std::string text(1000, 'x');
  for (std::size_t part : {1u, 7u, 63u, 64u, 65u, 500u}) {
    moonpool::Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += part) {
      hash.update(text.data() + at, std::min(part, text.size() - at));
    }
    CHECK(hash.finish() == moonpool::sha256(text.data(), text.size()));
  }
}

TEST(digests_compare) {
  const Digest a = moonpool::sha256("a", 1);
  Digest b = a;
  CHECK(moonpool::equal_digests(a, b));
  b[31] ^= 1;
  CHECK(!moonpool::equal_digests(a, b));
}

TEST(content_chain_follows_its_definition) {
  const auto tokens = random_tokens(50);
  std::vector<Digest> digests(moonpool::block_count(50, 16, true));
  CHECK_EQ(digests.size(), 4);
  moonpool::block_chain_sha256({}, tokens, 16, digests);
  CHECK(digests[0] == moonpool::sha256(tokens.data(), 64));
  std::string last(digests[2].begin(), digests[2].end());
  last.append(reinterpret_cast<const char*>(tokens.data() + 48), 8);
  CHECK(digests[3] == moonpool::sha256(last.data(), last.size()));
}

TEST(chains_continue_from_a_parent) {
  const auto tokens = random_tokens(64);
  const std::span<const std::uint32_t> all(tokens);
  std::vector<Digest> whole(4), rest(2);
  moonpool::block_chain_sha256({}, all, 16, whole);
  moonpool::block_chain_sha256(whole[1], all.subspan(32), 16, rest);
  CHECK(rest[1] == whole[3]);
  std::vector<std::uint64_t> values(4), later(2);
  moonpool::block_chain_u64(9, all, 16, values);
  moonpool::block_chain_u64(values[1], all.subspan(32), 16, later);
  CHECK_EQ(later[1], values[3]);
}

TEST_MAIN()
