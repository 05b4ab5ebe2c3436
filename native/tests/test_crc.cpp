// Every kernel this CPU can run against the portable one, at every small length and alignment.
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "copy.hpp"
#include "crc.hpp"

namespace {

std::vector<unsigned char> random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> bytes(size);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

}  // namespace

TEST(crc32c_of_known_strings) {
  for (const auto& kernel : moonpool::crc_kernels()) {
    CHECK_EQ(kernel.crc("123456789", 9, 0), 0xE3069283u);
    const std::string zeros(32, '\0');
    CHECK_EQ(kernel.crc(zeros.data(), 32, 0), 0x8A9136AAu);  // RFC 3720, B.4
    const std::string ones(32, '\xFF');
    CHECK_EQ(kernel.crc(ones.data(), 32, 0), 0x62A8AB43u);
    CHECK_EQ(kernel.crc("", 0, 0x1234u), 0x1234u);
  }
}

TEST(kernels_agree_at_every_length) {
  const auto bytes = random_bytes(4096 + 64, 1);
  for (const auto& kernel : moonpool::crc_kernels()) {
    for (std::size_t size = 0; size <= 4096; size += size < 1200 ? 1 : 61) {
      const std::size_t at = size % 64;
      CHECK_EQ(kernel.crc(bytes.data() + at, size, 7),
               moonpool::crc32c_portable(bytes.data() + at, size, 7));
    }
  }
}

TEST(copies_agree_and_stay_inside) {
  const auto bytes = random_bytes(70000, 2);
  for (const auto& kernel : moonpool::crc_kernels()) {
    for (std::size_t size : {0u, 1u, 63u, 511u, 512u, 575u, 1024u, 1087u, 8192u, 8193u, 65536u}) {
      for (std::size_t to : {0u, 1u, 17u, 63u}) {
        for (std::size_t from : {0u, 5u, 32u}) {
          std::vector<unsigned char> out(size + 128, 0xEE);
          const auto copy = (to + from) % 2 ? kernel.copy : kernel.stream;
          const auto crc = copy(out.data() + to, bytes.data() + from, size, 9);
          CHECK_EQ(crc, moonpool::crc32c_portable(bytes.data() + from, size, 9));
          CHECK(std::equal(out.begin() + to, out.begin() + to + size, bytes.begin() + from));
          for (std::size_t i = 0; i < to; i++) CHECK_EQ(out[i], 0xEE);
          for (std::size_t i = to + size; i < out.size(); i++) CHECK_EQ(out[i], 0xEE);
        }
      }
    }
  }
}

TEST(nothing_may_be_null) {
  for (const auto& kernel : moonpool::crc_kernels()) {
    CHECK_EQ(kernel.crc(nullptr, 0, 5), 5);
    CHECK_EQ(kernel.copy(nullptr, nullptr, 0, 5), 5);
    CHECK_EQ(kernel.stream(nullptr, nullptr, 0, 5), 5);
  }
}

TEST(a_split_continues_and_combines) {
  const auto bytes = random_bytes(20000, 3);
  const auto whole = moonpool::crc32c(bytes.data(), bytes.size());
  for (std::size_t cut : {0u, 1u, 100u, 4096u, 19999u, 20000u}) {
    const auto a = moonpool::crc32c(bytes.data(), cut);
    const auto b = moonpool::crc32c(bytes.data() + cut, bytes.size() - cut);
    CHECK_EQ(moonpool::crc32c(bytes.data() + cut, bytes.size() - cut, a), whole);
    CHECK_EQ(moonpool::crc32c_combine(a, b, bytes.size() - cut), whole);
  }
}

TEST_MAIN()
