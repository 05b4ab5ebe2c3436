// Hot buffers against a plain model: which rows are here, whose they are, what was counted.
#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "check.hpp"
#include "hot_buffer.hpp"

using namespace moonpool;

namespace {

constexpr std::uint32_t kRow = 16, kTokens = 300, kLayers = 2;
using Positions = std::vector<std::uint32_t>;

struct Source {
  Source() : memory(std::size_t{kLayers} * kTokens * kRow) {
    for (std::size_t i = 0; i < memory.size(); i++) {
      memory[i] = static_cast<std::uint8_t>(i / kRow * 37 + i % kRow + i / (kRow * 256));
    }
  }
  RowTable table() const {
    return RowTable({kRow, kTokens, kLayers, kTokens},
                    {{memory.data(), std::uint64_t{kTokens} * kRow, nullptr, 0}});
  }
  const std::uint8_t* row(std::uint32_t layer, std::uint32_t position) const {
    return memory.data() + (std::size_t{layer} * kTokens + position) * kRow;
  }
  std::vector<std::uint8_t> memory;
};

void check_rows(HotBuffer& hot, const Source& source, std::uint32_t layer,
                const Positions& positions, const Positions& slots) {
  for (std::size_t i = 0; i < positions.size(); i++) {
    CHECK(slots[i] < hot.slots());
    CHECK_EQ(
        std::memcmp(hot.layer_rows(layer) + slots[i] * kRow, source.row(layer, positions[i]), kRow),
        0);
  }
}

Gathered ask(HotBuffer& hot, const RowTable& table, std::uint32_t layer, const Positions& positions,
             Positions* slots) {
  slots->assign(positions.size(), 0);
  const Positions layers{layer}, counts{static_cast<std::uint32_t>(positions.size())};
  return hot.fetch(table, layers, counts, positions, *slots);
}

TEST(lru_keeps_what_was_used_last) {
  Source source;
  const RowTable table = source.table();
  HotBuffer hot(kLayers, 3, kRow, HotPolicy::kLru, 0, 0);
  Positions slots;
  CHECK_EQ(ask(hot, table, 0, {1, 2, 3}, &slots).status, Status::kOk);
  ask(hot, table, 0, {1}, &slots);     // 2 is the oldest now
  ask(hot, table, 0, {4}, &slots);     // pushes 2 out
  ask(hot, table, 0, {1, 3}, &slots);  // both here
  CHECK_EQ(hot.counters().hits, 3);
  CHECK_EQ(hot.counters().evicted, 1);
  ask(hot, table, 0, {2}, &slots);
  CHECK_EQ(hot.counters().misses, 5);
  check_rows(hot, source, 0, {2}, slots);
}

TEST(fifo_forgets_in_the_order_of_arrival) {
  Source source;
  const RowTable table = source.table();
  HotBuffer hot(kLayers, 3, kRow, HotPolicy::kFifo, 0, 0);
  Positions slots;
  ask(hot, table, 0, {1, 2, 3}, &slots);
  ask(hot, table, 0, {1}, &slots);
  ask(hot, table, 0, {4}, &slots);  // pushes 1 out, used or not
  ask(hot, table, 0, {2, 3}, &slots);
  CHECK_EQ(hot.counters().hits, 3);
  ask(hot, table, 0, {1}, &slots);
  CHECK_EQ(hot.counters().misses, 5);
}

TEST(a_position_that_stands_twice_is_one_row) {
  Source source;
  const RowTable table = source.table();
  HotBuffer hot(kLayers, 4, kRow, HotPolicy::kLru, 0, 0);
  Positions slots;
  ask(hot, table, 1, {7, 8, 7, 8}, &slots);
  CHECK_EQ(slots[0], slots[2]);
  CHECK_EQ(hot.counters().misses, 2);
  CHECK_EQ(hot.counters().hits, 2);
  check_rows(hot, source, 1, {7, 8, 7, 8}, slots);
}

TEST(rows_of_one_call_never_push_each_other_out) {
  Source source;
  const RowTable table = source.table();
  for (const auto policy : {HotPolicy::kLru, HotPolicy::kFifo, HotPolicy::kRandom}) {
    std::mt19937 random(static_cast<unsigned>(policy));
    HotBuffer hot(kLayers, 40, kRow, policy, 5, 0);
    for (int step = 0; step < 200; step++) {
      Positions all(kTokens), slots;
      for (std::uint32_t i = 0; i < kTokens; i++) all[i] = i;
      std::shuffle(all.begin(), all.end(), random);
      all.resize(1 + random() % 40);
      const std::uint32_t layer = random() % kLayers;
      CHECK_EQ(ask(hot, table, layer, all, &slots).status, Status::kOk);
      check_rows(hot, source, layer, all, slots);
      CHECK_EQ(std::set<std::uint32_t>(slots.begin(), slots.end()).size(), all.size());
    }
    CHECK_EQ(hot.counters().hits + hot.counters().misses, hot.counters().rows);
  }
}

// First level as a list by age, second level as another: the counters must be the model's.
TEST(lru_with_a_second_level_equals_its_model) {
  Source source;
  const RowTable table = source.table();
  constexpr std::uint32_t kSlots = 12, kSecond = 20;
  HotBuffer hot(kLayers, kSlots, kRow, HotPolicy::kLru, 0, kSecond);
  std::list<std::uint32_t> first[kLayers];
  std::list<std::pair<std::uint32_t, std::uint32_t>> second;
  std::uint64_t hits = 0, seconds = 0, fetched = 0;
  std::mt19937 random(11);
  for (int step = 0; step < 2000; step++) {
    Positions wanted, slots;
    for (std::uint32_t i = 0; i < 1 + random() % kSlots; i++) wanted.push_back(random() % 60);
    const std::uint32_t layer = random() % kLayers;
    auto& here = first[layer];
    Positions missed;
    for (const auto position : wanted) {
      const auto found = std::find(here.begin(), here.end(), position);
      if (found == here.end()) {
        missed.push_back(position);
        continue;
      }
      here.splice(here.end(), here, found);
      hits++;
    }
    for (const auto position : missed) {
      if (std::find(here.begin(), here.end(), position) != here.end()) {
        hits++;
        continue;
      }
      const auto found = std::find(second.begin(), second.end(), std::pair{layer, position});
      if (found != second.end()) {
        second.erase(found);
        seconds++;
      } else {
        fetched++;
      }
      if (here.size() == kSlots) {
        second.emplace_back(layer, here.front());
        if (second.size() > kSecond) second.pop_front();
        here.pop_front();
      }
      here.push_back(position);
    }
    CHECK_EQ(ask(hot, table, layer, wanted, &slots).status, Status::kOk);
    check_rows(hot, source, layer, wanted, slots);
    CHECK_EQ(hot.counters().hits, hits);
    CHECK_EQ(hot.counters().second_hits, seconds);
    CHECK_EQ(hot.counters().fetched, fetched);
  }
  CHECK(seconds > 100);
}

TEST(rows_that_have_moved_away_leave_nothing_behind) {
  Source source;
  std::atomic<std::uint64_t> word{1};
  const RowTable table({kRow, kTokens, kLayers, kTokens},
                       {{source.memory.data(), std::uint64_t{kTokens} * kRow, &word, 1}});
  HotBuffer hot(kLayers, 4, kRow, HotPolicy::kLru, 0, 0);
  Positions slots;
  ask(hot, table, 0, {1, 2}, &slots);
  word = 2;
  CHECK_EQ(ask(hot, table, 0, {1}, &slots).status, Status::kOk);  // was here
  CHECK_EQ(ask(hot, table, 0, {1, 3, 4}, &slots).status, Status::kMoved);
  word = 1;
  CHECK_EQ(ask(hot, table, 0, {1, 2, 3, 4}, &slots).status, Status::kOk);
  check_rows(hot, source, 0, {1, 2, 3, 4}, slots);
  CHECK_EQ(hot.counters().fetched, 4);
}

TEST(two_steps_equal_one) {
  Source source;
  const RowTable table = source.table();
  HotBuffer one(kLayers, 10, kRow, HotPolicy::kLru, 0, 7),
      two(kLayers, 10, kRow, HotPolicy::kLru, 0, 7);
  std::mt19937 random(3);
  for (int step = 0; step < 300; step++) {
    Positions wanted, slots_one, slots_two;
    for (int i = 0; i < 16; i++) wanted.push_back(random() % 50);
    const Positions layers{0, 1}, counts{8, 8};
    slots_one.assign(16, 0), slots_two.assign(16, 0);
    one.fetch(table, layers, counts, wanted, slots_one);
    std::vector<std::uint8_t> rows;
    for (const auto& missing : two.begin(layers, counts, wanted, slots_two)) {
      const std::uint8_t* row = source.row(missing.layer, missing.position);
      rows.insert(rows.end(), row, row + kRow);
    }
    two.finish(rows.data());
    CHECK(slots_one == slots_two);
    check_rows(two, source, 1, Positions(wanted.begin() + 8, wanted.end()),
               Positions(slots_two.begin() + 8, slots_two.end()));
  }
  CHECK_EQ(one.counters().fetched, two.counters().fetched);
}

TEST(an_abandoned_step_is_as_if_its_rows_had_never_come) {
  HotBuffer hot(1, 4, kRow, HotPolicy::kLru, 0, 0);
  Source source;
  Positions slots(2);
  const Positions layers{0}, counts{2}, wanted{5, 6};
  hot.begin(layers, counts, wanted, slots);
  CHECK_THROWS(hot.begin(layers, counts, wanted, slots), std::logic_error);
  hot.abandon();
  CHECK_EQ(ask(hot, source.table(), 0, {5, 6}, &slots).status, Status::kOk);
  CHECK_EQ(hot.counters().fetched, 2);
  check_rows(hot, source, 0, {5, 6}, slots);
}

TEST(what_does_not_fit_is_refused_and_changes_nothing) {
  Source source;
  const RowTable table = source.table();
  HotBuffer hot(kLayers, 4, kRow, HotPolicy::kLru, 0, 0);
  Positions slots;
  CHECK_THROWS(ask(hot, table, 0, {1, 2, 3, 4, 5}, &slots), std::invalid_argument);
  CHECK_THROWS(ask(hot, table, kLayers, {1}, &slots), std::invalid_argument);
  CHECK_EQ(ask(hot, table, 0, {1, kTokens}, &slots).status, Status::kBounds);
  CHECK_EQ(hot.counters().rows, 0);
  HotBuffer other(kLayers, 4, kRow + 8, HotPolicy::kLru, 0, 0);
  CHECK_THROWS(ask(other, table, 0, {1}, &slots), std::invalid_argument);
}

}  // namespace

TEST_MAIN()
