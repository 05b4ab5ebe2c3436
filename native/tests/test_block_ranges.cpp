// Block ids and raw ranges: what passes, what is refused, and that nothing wraps.
#include "../block_ranges.hpp"

#include <array>
#include <limits>
#include <vector>

#include "check.hpp"

namespace {

using moonpool::block_offsets;
using moonpool::ranges_inside;
using U64s = std::vector<std::uint64_t>;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

template <class Id>
bool accepted(std::vector<Id> ids, std::uint64_t count, U64s* out) {
  out->assign(ids.size(), 0);
  return block_offsets(std::span<const Id>(ids), count, 100, 7, out->data());
}

TEST(offsets_are_strided) {
  U64s out;
  CHECK(accepted<std::int64_t>({3, 0, 4}, 5, &out));
  CHECK(out == (U64s{307, 7, 407}));
  CHECK(accepted<std::uint32_t>({1}, 5, &out));
  CHECK(out == (U64s{107}));
  CHECK(accepted<std::int32_t>({}, 0, &out));
}

TEST(ids_outside_are_refused_in_every_width) {
  U64s out;
  CHECK(!accepted<std::int64_t>({0, 5}, 5, &out));
  CHECK(!accepted<std::int64_t>({-1}, 5, &out));
  CHECK(!accepted<std::int32_t>({-1}, 5, &out));
  CHECK(!accepted<std::uint32_t>({5}, 5, &out));
  CHECK(!accepted<std::uint64_t>({kMax}, 5, &out));
  CHECK(!accepted<std::int64_t>({0}, 0, &out));
}

TEST(ranges_sum_up) {
  CHECK_EQ(ranges_inside(U64s{0, 10, 0}, U64s{10, 0, 3}, 10).value(), 13u);
  CHECK_EQ(ranges_inside(U64s{}, U64s{}, 0).value(), 0u);
}

TEST(ranges_outside_are_refused_without_wrapping) {
  CHECK(!ranges_inside(U64s{0}, U64s{11}, 10));
  CHECK(!ranges_inside(U64s{11}, U64s{0}, 10));
  CHECK(!ranges_inside(U64s{kMax}, U64s{2}, 10));
  CHECK(!ranges_inside(U64s{2}, U64s{kMax}, 10));
  const std::uint64_t half = std::uint64_t{1} << 62;
  CHECK(!ranges_inside(U64s{0, 0}, U64s{half, half}, half));
}

}  // namespace

TEST_MAIN()
