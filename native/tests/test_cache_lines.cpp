// Flushing changes no byte, counts whole lines, and checks every block before the first line.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "../cache_lines.hpp"
#include "check.hpp"

namespace {

using moonpool::cache_line_bytes;
using moonpool::Range;
using Words = std::vector<std::uint64_t>;

struct Memory {
  explicit Memory(std::size_t size) : bytes(size + cache_line_bytes()) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
    const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
    const std::size_t line = cache_line_bytes();
    range = {bytes.data() + (line - at % line) % line, size};
  }
  std::vector<std::byte> bytes;
  Range range;  // begins with a line
};

TEST(whole_lines_are_counted) {
  const std::uint64_t line = cache_line_bytes();
  CHECK(line >= 16 && (line & (line - 1)) == 0);
  Memory memory(8 * line);
  const std::vector<std::byte> before = memory.bytes;
  CHECK_EQ(moonpool::write_back(memory.range, Words{0}, Words{8 * line}), 8);
  CHECK_EQ(moonpool::invalidate(memory.range, Words{line - 1}, Words{2}), 2);
  CHECK_EQ(moonpool::invalidate(memory.range, Words{3, 5 * line}, Words{0, 1}), 1);
  CHECK_EQ(moonpool::write_back(memory.range, Words{}, Words{}), 0);
  CHECK(memory.bytes == before);
}

TEST(a_block_outside_is_refused) {
  Memory memory(256);
  int refused = 0;
  for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{257, 0},
                                       {0, 257},
                                       {256, 1},
                                       {8, ~std::uint64_t{0}}}) {
    try {
      moonpool::invalidate(memory.range, Words{offset}, Words{length});
    } catch (const std::out_of_range&) {
      refused++;
    }
  }
  CHECK_EQ(refused, 4);
  bool uneven = false;
  try {
    moonpool::write_back(memory.range, Words{0, 1}, Words{1});
  } catch (const std::invalid_argument&) {
    uneven = true;
  }
  CHECK(uneven);
}

}  // namespace

TEST_MAIN()
