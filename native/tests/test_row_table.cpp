// Gathers against rows whose every byte is known; guards that change; bounds.
#include <algorithm>
#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "copy.hpp"
#include "row_table.hpp"

using namespace moonpool;

namespace {

constexpr std::uint32_t kRow = 24, kLayers = 3;

// Row (layer, position) is 24 bytes of a mix of both.
std::uint8_t stamp(std::uint32_t layer, std::uint32_t position, std::uint32_t at) {
  return static_cast<std::uint8_t>(layer * 89 + position * 31 + at * 7 + position / 256);
}

struct Rows {
  Rows(std::uint32_t unit_tokens, std::uint32_t tokens)
      : shape{kRow, unit_tokens, kLayers, tokens} {
    const std::uint32_t count = (tokens + unit_tokens - 1) / unit_tokens;
    for (std::uint32_t unit = 0; unit < count; unit++) {
      const std::uint32_t rows = std::min(unit_tokens, tokens - unit * unit_tokens);
      memory.emplace_back(std::size_t{kLayers} * rows * kRow);
      for (std::uint32_t layer = 0; layer < kLayers; layer++) {
        for (std::uint32_t row = 0; row < rows; row++) {
          for (std::uint32_t at = 0; at < kRow; at++) {
            memory.back()[(std::size_t{layer} * rows + row) * kRow + at] =
                stamp(layer, unit * unit_tokens + row, at);
          }
        }
      }
      units.push_back({memory.back().data(), std::uint64_t{rows} * kRow, nullptr, 0});
    }
  }
  RowTable table() const { return RowTable(shape, units); }

  RowShape shape;
  std::vector<std::vector<std::uint8_t>> memory;
  std::vector<RowUnit> units;
};

bool is_row(const std::uint8_t* row, std::uint32_t layer, std::uint32_t position) {
  for (std::uint32_t at = 0; at < kRow; at++) {
    if (row[at] != stamp(layer, position, at)) return false;
  }
  return true;
}

TEST(rows_come_in_the_order_asked_for) {
  for (const std::uint32_t unit : {64u, 60u, 7u}) {
    Rows rows(unit, 1000);
    const RowTable table = rows.table();
    std::mt19937 random(unit);
    std::vector<std::uint32_t> positions(333);
    for (auto& position : positions) position = random() % 1000;
    std::vector<std::uint8_t> out(positions.size() * kRow);
    for (std::uint32_t layer = 0; layer < kLayers; layer++) {
      CHECK_EQ(table.gather(layer, positions, out.data()).status, Status::kOk);
      for (std::size_t i = 0; i < positions.size(); i++) {
        CHECK(is_row(out.data() + i * kRow, layer, positions[i]));
      }
    }
  }
}

TEST(rows_go_to_the_slots_named) {
  Rows rows(64, 200);
  const std::vector<std::uint32_t> positions{199, 0, 64}, slots{5, 2, 0};
  std::vector<std::uint8_t> out(6 * kRow, 0xee);
  CHECK_EQ(rows.table().gather(1, positions, out.data(), slots).status, Status::kOk);
  for (std::size_t i = 0; i < 3; i++) CHECK(is_row(out.data() + slots[i] * kRow, 1, positions[i]));
  CHECK_EQ(out[1 * kRow], 0xee);
}

TEST(whole_runs_are_copied_across_units) {
  Rows rows(60, 1000);
  std::vector<std::uint8_t> out(500 * kRow);
  CHECK_EQ(rows.table().copy(2, 37, 500, out.data()).status, Status::kOk);
  for (std::uint32_t i = 0; i < 500; i++) CHECK(is_row(out.data() + i * kRow, 2, 37 + i));
  CHECK_EQ(rows.table().copy(0, 900, 101, out.data()).status, Status::kBounds);
}

TEST(large_runs_go_past_the_caches_and_are_the_same_rows) {
  // One layer of 60,000 rows of 24 bytes is above kStreamBytes; units of 777 rows start nowhere
  // near a cache line, and neither does the destination.
  Rows rows(777, 60000);
  CHECK(60000 * kRow >= kStreamBytes);
  std::vector<std::uint8_t> out(60000 * kRow + 64, 0xee);
  for (const std::size_t shift : {0u, 1u, 63u}) {
    CHECK_EQ(rows.table().copy(1, 0, 60000, out.data() + shift).status, Status::kOk);
    for (std::uint32_t i = 0; i < 60000; i++) CHECK(is_row(out.data() + shift + i * kRow, 1, i));
    CHECK_EQ(out.back(), 0xee);
  }
  // In parts, the last of them smaller.
  Helpers helpers(3);
  CHECK_EQ(rows.table().copy(2, 5, 59000, out.data(), &helpers).status, Status::kOk);
  for (std::uint32_t i = 0; i < 59000; i++) CHECK(is_row(out.data() + i * kRow, 2, 5 + i));
}

TEST(copies_past_the_caches_write_what_they_are_told_and_nothing_else) {
  std::vector<std::uint8_t> from(40000), to(40200);
  for (std::size_t i = 0; i < from.size(); i++)
    from[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  for (const std::size_t size : {0u, 1u, 63u, 64u, 127u, 128u, 129u, 191u, 192u, 500u, 2048u, 2111u,
                                 2112u, 16448u, 39000u}) {
    for (std::size_t shift = 0; shift < 64; shift += 9) {
      std::fill(to.begin(), to.end(), 0xee);
      // In one piece, and in pieces that end within lines, runs and streams.
      std::vector<CopyPiece> pieces{{from.data() + 3, size}};
      if (shift % 2 == 1) {
        pieces.clear();
        for (std::size_t at = 0; at < size; at += pieces.back().size) {
          pieces.push_back({from.data() + 3 + at, std::min(size - at, 1 + at * 7 % 311)});
        }
        pieces.push_back({});
      }
      copy_past_caches(to.data() + shift, pieces);
      CHECK(std::equal(from.begin() + 3, from.begin() + 3 + size, to.begin() + shift));
      CHECK(std::all_of(to.begin(), to.begin() + shift, [](auto b) { return b == 0xee; }));
      CHECK(std::all_of(to.begin() + shift + size, to.end(), [](auto b) { return b == 0xee; }));
    }
  }
}

TEST(rows_split_between_helpers_are_the_same_rows) {
  Rows rows(64, 5000);
  Helpers helpers(3);
  std::mt19937 random(3);
  std::vector<std::uint32_t> positions(1000);
  std::vector<std::uint8_t> out(5000 * kRow);
  for (int lap = 0; lap < 50; lap++) {
    for (auto& position : positions) position = random() % 5000;
    std::fill(out.begin(), out.end(), 0xee);
    CHECK_EQ(rows.table().gather(1, positions, out.data(), {}, &helpers).status, Status::kOk);
    for (std::size_t i = 0; i < positions.size(); i++) {
      CHECK(is_row(out.data() + i * kRow, 1, positions[i]));
    }
    CHECK_EQ(out[positions.size() * kRow], 0xee);
    std::fill(out.begin(), out.end(), 0xee);
    CHECK_EQ(rows.table().copy(2, 37, 4900, out.data(), &helpers).status, Status::kOk);
    for (std::uint32_t i = 0; i < 4900; i++) CHECK(is_row(out.data() + i * kRow, 2, 37 + i));
    CHECK_EQ(out[4900 * kRow], 0xee);
  }
}

TEST(helpers_do_each_part_once_and_tell_who_has_another_owner) {
  Helpers helpers(2);
  std::vector<std::atomic<int>> done(777);
  for (const std::size_t parts : {0u, 1u, 2u, 777u}) {
    for (auto& count : done) count = 0;
    helpers.run(parts, [&](std::size_t part) { done[part]++; });
    for (std::size_t part = 0; part < done.size(); part++) CHECK_EQ(done[part], part < parts);
  }
  // Two callers at once: one of them does its parts alone.
  std::atomic<int> sum{0};
  std::thread other([&] {
    for (int lap = 0; lap < 200; lap++) helpers.run(10, [&](std::size_t) { sum++; });
  });
  for (int lap = 0; lap < 200; lap++) helpers.run(10, [&](std::size_t) { sum++; });
  other.join();
  CHECK_EQ(sum, 4000);
  Rows rows(64, 1000);
  std::atomic<std::uint64_t> words[2] = {7, 8};
  rows.units[5].guard = &words[0];
  rows.units[9].guard = &words[1];
  rows.units[5].expected = rows.units[9].expected = 8;
  std::vector<std::uint8_t> out(1000 * kRow);
  const Gathered got = rows.table().copy(0, 10, 900, out.data(), &helpers);
  CHECK_EQ(got.status, Status::kMoved);
  CHECK_EQ(got.at, 5 * 64 - 10);
  words[0] = 8;
  CHECK_EQ(rows.table().copy(0, 10, 900, out.data(), &helpers).status, Status::kOk);
}

TEST(a_run_is_found_where_it_lies) {
  Rows rows(64, 200);
  const RowTable table = rows.table();
  const std::vector<std::uint32_t> run{10, 11, 12}, gap{10, 12}, across{63, 64}, back{11, 10};
  CHECK(table.run(1, run) == rows.memory[0].data() + (64 + 10) * kRow);
  CHECK(table.run(1, gap) == nullptr);
  CHECK(table.run(1, across) == nullptr);
  CHECK(table.run(1, back) == nullptr);
  CHECK(table.run(1, {}) == nullptr);
}

TEST(a_position_outside_copies_nothing) {
  Rows rows(64, 100);
  const std::vector<std::uint32_t> positions{1, 99, 100};
  std::vector<std::uint8_t> out(3 * kRow, 0xee);
  const Gathered got = rows.table().gather(0, positions, out.data());
  CHECK_EQ(got.status, Status::kBounds);
  CHECK_EQ(got.at, 2);
  CHECK_EQ(out[0], 0xee);
  CHECK_EQ(rows.table().gather(kLayers, {}, out.data()).status, Status::kBounds);
}

TEST(a_unit_with_another_owner_is_told) {
  Rows rows(64, 200);
  std::vector<std::atomic<std::uint64_t>> words(4);
  for (std::size_t i = 0; i < words.size(); i++) {
    words[i] = 10 + i;
    rows.units[i].guard = &words[i];
    rows.units[i].expected = 10 + i;
  }
  const RowTable table = rows.table();
  std::vector<std::uint8_t> out(200 * kRow);
  const std::vector<std::uint32_t> positions{0, 70, 130};
  CHECK_EQ(table.gather(0, positions, out.data()).status, Status::kOk);
  words[1]++;
  CHECK_EQ(table.gather(0, positions, out.data()).status, Status::kMoved);
  CHECK_EQ(table.gather(0, positions, out.data()).at, 1);
  CHECK_EQ(table.copy(0, 0, 200, out.data()).status, Status::kMoved);
  CHECK_EQ(table.copy(0, 0, 64, out.data()).status, Status::kOk);
}

// The reuser changes the word, then the bytes: no gather that says kOk may hold any of them. The
// bytes are only looked at, never written, while a gather may read them in earnest: what races
// here is the guard alone, so that thread sanitizers see what is meant to be synchronised.
TEST(a_guard_that_changes_meanwhile_is_seen) {
  Rows rows(64, 64);
  std::atomic<std::uint64_t> word{1};
  rows.units[0].guard = &word;
  rows.units[0].expected = 1;
  const RowTable table = rows.table();
  std::atomic<bool> reused{false};
  std::thread writer([&] {
    std::this_thread::yield();
    word.store(2, std::memory_order_release);
    reused.store(true, std::memory_order_seq_cst);
  });
  std::vector<std::uint8_t> out(64 * kRow);
  std::vector<std::uint32_t> positions(64);
  for (std::uint32_t i = 0; i < 64; i++) positions[i] = 63 - i;
  bool before = false;
  while (!before) {
    before = reused.load(std::memory_order_seq_cst);
    const Gathered got = table.gather(2, positions, out.data());
    if (before) CHECK_EQ(got.status, Status::kMoved);
    if (got.status == Status::kOk) CHECK(is_row(out.data(), 2, 63));
  }
  writer.join();
}

TEST(shapes_of_nothing_are_refused) {
  CHECK_THROWS(RowTable({0, 64, 1, 1}, {}), std::invalid_argument);
  CHECK_THROWS(RowTable({8, 64, 1, 65}, {RowUnit{}}), std::invalid_argument);
}

}  // namespace

TEST_MAIN()
