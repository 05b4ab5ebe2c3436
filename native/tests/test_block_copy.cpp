// Block copies: bytes, bounds, cancel and deadline.
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../block_copy.hpp"
#include "../crc.hpp"
#include "check.hpp"

namespace {

using moonpool::BlockCopy;
using moonpool::Range;
using moonpool::Status;
using Offsets = std::vector<std::uint64_t>;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::vector<std::byte> stamped(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

Range range_of(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }

TEST(blocks_arrive) {
  std::vector<std::byte> src = stamped(1000), dst(1000);
  BlockCopy copy(range_of(dst), Offsets{0, 500, 1000}, range_of(src), Offsets{100, 0, 7},
                 Offsets{200, 300, 0}, true);
  CHECK(copy.run(kNever) == Status::kOk);
  CHECK(std::memcmp(dst.data(), src.data() + 100, 200) == 0);
  CHECK(std::memcmp(dst.data() + 500, src.data(), 300) == 0);
  for (std::size_t i = 200; i < 500; ++i) CHECK(dst[i] == std::byte{0});
  CHECK(copy.crc()[0] == moonpool::crc32c(src.data() + 100, 200));
  CHECK(copy.crc()[2] == 0);
}

TEST(crc_runs_over_pieces) {
  const std::size_t size = BlockCopy::kPieceBytes * 2 + 17;
  std::vector<std::byte> src = stamped(size), dst(size);
  BlockCopy copy(range_of(dst), Offsets{0}, range_of(src), Offsets{0}, Offsets{size}, true);
  CHECK(copy.run(kNever) == Status::kOk);
  CHECK(src == dst);
  CHECK(copy.crc()[0] == moonpool::crc32c(src.data(), size));
}

TEST(bounds_do_not_wrap) {
  std::vector<std::byte> src(10), dst(10);
  const std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [to, from, length] : {std::array<std::uint64_t, 3>{0, 0, 11},
                                         {11, 0, 0},
                                         {5, 0, 6},
                                         {0, huge, 2},
                                         {2, 0, huge}}) {
    bool refused = false;
    try {
      BlockCopy(range_of(dst), Offsets{to}, range_of(src), Offsets{from}, Offsets{length}, true);
    } catch (const std::out_of_range&) {
      refused = true;
    }
    CHECK(refused);
  }
}

TEST(a_passed_deadline_copies_nothing) {
  std::vector<std::byte> src = stamped(100), dst(100);
  BlockCopy copy(range_of(dst), Offsets{0}, range_of(src), Offsets{0}, Offsets{100}, false);
  CHECK(copy.run(0) == Status::kExpired);
  CHECK(copy.status()[0] == static_cast<std::uint8_t>(Status::kExpired));
  CHECK(dst == std::vector<std::byte>(100));
}

TEST(cancel_from_another_thread) {
  const std::size_t size = BlockCopy::kPieceBytes * 8;
  std::vector<std::byte> src = stamped(size), dst(size);
  BlockCopy copy(range_of(dst), Offsets{0}, range_of(src), Offsets{0}, Offsets{size}, true);
  std::thread canceller([&] { copy.cancel(); });
  const Status outcome = copy.run(kNever);
  canceller.join();
  CHECK(outcome == Status::kCancelled || outcome == Status::kOk);
}

}  // namespace

TEST_MAIN()
