// The extent allocator: never twice, never lost, everything usable.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "check.hpp"
#include "extents.hpp"
#include "mix.hpp"

using namespace moonpool;

namespace {

constexpr std::uint64_t kArea = 1 << 20;

std::mt19937_64 seeded(const char* test) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("  %s: seed %llu\n", test, static_cast<unsigned long long>(seed));
  return std::mt19937_64(seed);
}

std::uint64_t between(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return low + random() % (high - low + 1);
}

// Every granule has at most one owner, and the free ones are counted.
void check_consistent(const ExtentAllocator& allocator, std::vector<Extent> used) {
  std::sort(used.begin(), used.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  std::uint64_t at = 0, total = 0;
  for (const Extent& extent : used) {
    CHECK(extent.offset >= at);
    CHECK(extent.offset % kGranule == 0 && extent.bytes % kGranule == 0);
    at = extent.offset + extent.bytes;
    total += extent.bytes;
  }
  CHECK(at <= allocator.total_bytes());
  CHECK_EQ(total + allocator.free_bytes(), allocator.total_bytes());
}

}  // namespace

TEST(whole_area_is_one_extent) {
  ExtentAllocator allocator(kArea + 63);
  CHECK_EQ(allocator.total_bytes(), kArea);
  CHECK_EQ(allocator.largest_free(), kArea);
  const auto all = allocator.allocate_one(kArea);
  CHECK(all.has_value());
  CHECK_EQ(allocator.free_bytes(), 0);
  CHECK_EQ(allocator.largest_free(), 0);
  CHECK(!allocator.allocate_one(1).has_value());
  allocator.free(*all);
  CHECK_EQ(allocator.free_blocks(), 1);
}

TEST(sizes_are_rounded_to_granules) {
  ExtentAllocator allocator(kArea);
  CHECK_EQ(allocator.allocate_one(1)->bytes, kGranule);
  CHECK_EQ(allocator.allocate_one(65)->bytes, 2 * kGranule);
  CHECK(!allocator.allocate_one(0).has_value());
  CHECK(!allocator.allocate_one(~0ull).has_value());
}

TEST(zero_bytes_take_no_extent) {
  ExtentAllocator allocator(kArea);
  std::vector<Extent> out{{0, 64}};
  CHECK(allocator.allocate(0, 1, out));
  CHECK(out.empty());
}

TEST(neighbours_grow_together) {
  ExtentAllocator allocator(kArea);
  std::vector<Extent> out;
  for (int i = 0; i < 16; ++i) out.push_back(*allocator.allocate_one(kArea / 16));
  for (const int i : {3, 1, 2, 15, 0, 7, 5, 6, 4, 8, 12, 10, 9, 11, 14, 13}) allocator.free(out[i]);
  CHECK_EQ(allocator.free_blocks(), 1);
  CHECK_EQ(allocator.largest_free(), kArea);
}

TEST(best_fit_leaves_the_large_pieces) {
  ExtentAllocator allocator(kArea);
  const auto small = allocator.allocate_one(4096);
  const auto wall = allocator.allocate_one(64);
  CHECK(small && wall);
  allocator.free(*small);
  const auto again = allocator.allocate_one(4096);
  CHECK_EQ(again->offset, small->offset);
}

TEST(several_extents_when_no_single_one_fits) {
  ExtentAllocator allocator(64 * kGranule);
  std::vector<Extent> pieces, out;
  for (int i = 0; i < 64; ++i) pieces.push_back(*allocator.allocate_one(kGranule));
  for (int i = 0; i < 64; i += 2) allocator.free(pieces[i]);
  CHECK(!allocator.allocate_one(2 * kGranule).has_value());
  CHECK(!allocator.allocate(32 * kGranule, 31, out));
  CHECK_EQ(allocator.free_bytes(), 32 * kGranule);  // a refusal takes nothing
  CHECK(allocator.allocate(32 * kGranule, 32, out));
  CHECK_EQ(out.size(), 32);
  CHECK_EQ(allocator.free_bytes(), 0);
}

TEST(random_fills_reach_nearly_all) {
  std::mt19937_64 random = seeded("fill");
  constexpr std::uint64_t kLarge = 64 << 20;
  ExtentAllocator allocator(kLarge);
  std::vector<std::vector<Extent>> objects;
  for (int round = 0; round < 20; ++round) {
    std::vector<Extent> out;
    while (allocator.allocate(between(random, 1, 300'000), 4096, out)) objects.push_back(out);
    CHECK(allocator.free_bytes() < kLarge / 20);
    std::shuffle(objects.begin(), objects.end(), random);
    for (std::size_t keep = objects.size() * 2 / 3; objects.size() > keep; objects.pop_back()) {
      for (const Extent& extent : objects.back()) allocator.free(extent);
    }
  }
}

TEST(random_operations_lose_and_double_nothing) {
  std::mt19937_64 random = seeded("operations");
  ExtentAllocator allocator(kArea);
  std::vector<Extent> used;
  for (int step = 0; step < 20'000; ++step) {
    if (used.empty() || random() % 100 < 52) {
      std::vector<Extent> out;
      if (allocator.allocate(between(random, 1, 20'000), between(random, 1, 9), out)) {
        used.insert(used.end(), out.begin(), out.end());
      }
    } else {
      std::swap(used[random() % used.size()], used.back());
      allocator.free(used.back());
      used.pop_back();
    }
    if (step % 500 == 0) check_consistent(allocator, used);
  }
  ExtentAllocator rebuilt;
  CHECK(rebuilt.rebuild(kArea, used));
  CHECK_EQ(rebuilt.free_bytes(), allocator.free_bytes());
  CHECK_EQ(rebuilt.free_blocks(), allocator.free_blocks());
  CHECK_EQ(rebuilt.largest_free(), allocator.largest_free());
  for (const Extent& extent : used) rebuilt.free(extent);
  CHECK_EQ(rebuilt.free_blocks(), 1);
}

TEST(rebuild_refuses_what_cannot_be) {
  ExtentAllocator allocator;
  CHECK(!allocator.rebuild(kArea, {{0, 128}, {64, 64}}));
  CHECK(!allocator.rebuild(kArea, {{kArea - 64, 128}}));
  CHECK(!allocator.rebuild(kArea, {{1, 64}}));
  CHECK(!allocator.rebuild(kArea, {{~0ull - 63, 128}}));
  CHECK_EQ(allocator.free_bytes(), kArea);
}

TEST(flat_index_finds_all_of_one_hash) {
  std::mt19937_64 random = seeded("index");
  FlatIndex index;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> entries;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    entries.emplace_back(mix64(random() % 500), i);
    index.insert(entries.back().first, i);
  }
  std::shuffle(entries.begin(), entries.end(), random);
  while (!entries.empty()) {
    const auto [hash, value] = entries.back();
    CHECK(index.find(hash, [v = value](std::uint32_t found) { return found == v; }));
    CHECK(index.erase(hash, value));
    CHECK(!index.erase(hash, value));
    entries.pop_back();
  }
  CHECK_EQ(index.size(), 0);
}

TEST_MAIN()
