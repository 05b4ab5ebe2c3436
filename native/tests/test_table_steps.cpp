// What the catalog's decisions find out about many rows at once.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "table_steps.hpp"

namespace moonpool {
namespace {

using Rows = std::vector<std::int32_t>;
constexpr std::uint8_t kReserved = 1, kCommittedState = 2, kKept = 1, kOrphan = 8, kChosen = 32;

template <class Error, class Call>
bool throws(Call call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

// A chain a <- b <- c and a lone d, one replica each on segment 0, ten bytes each.
struct Family {
  Table table{16, 16, 4};
  Rows rows, replicas;

  Family() {
    const std::string blob = "abcd";
    const std::vector<std::uint32_t> ends{1, 2, 3, 4};
    rows.resize(4);
    replicas.resize(4);
    const auto fresh = std::make_unique<bool[]>(4);
    table.intern(KeyBatch(blob, ends), rows.data(), fresh.get());
    const Rows parents{-1, rows[0], rows[1], -1};
    table.set_parent(rows, parents, fresh.get());
    const std::vector<std::uint16_t> segments(4);
    const std::vector<std::uint32_t> slots{0, 1, 2, 3};
    const std::vector<std::uint64_t> generations(4, 1);
    table.add_replicas(rows, segments, slots, generations, replicas.data());
    for (const std::int32_t row : rows) {
      table.state[row] = kCommittedState;
      table.object_size[row] = 10;
    }
  }

  Victims victims(const Rows& candidates, std::uint64_t bytes, std::uint64_t objects = 0) {
    return collect_victims(table, candidates, {0, bytes, objects, kKept, kReserved, kChosen});
  }
  Readiness ready(const Rows& of, const std::vector<std::uint64_t>& attempts) {
    return commit_ready(table, of, attempts, {5, 4, kReserved, kCommittedState, kOrphan});
  }
};

TEST(victims_take_their_descendants_along_children_first) {
  Family f;
  const Victims victims = f.victims({f.replicas[1], f.replicas[3]}, 1);
  CHECK_EQ(victims.rows == (Rows{f.rows[2], f.rows[1]}), true);
  CHECK_EQ(victims.freed_bytes.at(0), 20U);
  CHECK_EQ(victims.freed_objects.at(0), 2U);
  CHECK_EQ(victims.ends.size(), 1U);
}

TEST(victims_stop_once_enough_is_freed_and_count_nobody_twice) {
  Family f;
  const Victims victims = f.victims({f.replicas[2], f.replicas[0], f.replicas[3]}, 30);
  CHECK_EQ(victims.rows == (Rows{f.rows[2], f.rows[1], f.rows[0]}), true);
  CHECK_EQ(victims.ends == (std::vector<std::uint32_t>{1, 3}), true);
  CHECK_EQ(victims.freed_bytes.back(), 30U);
  CHECK_EQ(f.victims(f.replicas, 0, 1).rows == (Rows{f.rows[3]}), true);
}

TEST(a_kept_member_spares_the_whole_closure) {
  Family f;
  f.table.flags[f.rows[2]] = kKept;
  f.table.state[f.rows[3]] = kReserved;
  const Victims victims = f.victims({f.replicas[0], f.replicas[3]}, 100);
  CHECK_EQ(victims.rows.empty(), true);
  CHECK_EQ(victims.spared == (Rows{f.replicas[0], f.replicas[3]}), true);
}

TEST(candidates_that_are_no_replicas_are_refused) {
  Family f;
  CHECK(throws<std::out_of_range>([&] { f.victims({99}, 1); }));
}

TEST(parents_are_found_by_place_or_outside) {
  Family f;
  const Rows parent_of{-1, 0, -2, 3}, outside{f.rows[3]};
  Rows parents(4);
  std::vector<std::uint8_t> verdicts(4);
  batch_parents(f.table, f.rows, parent_of, outside, kCommittedState, parents.data(),
                verdicts.data());
  CHECK_EQ(parents == (Rows{-1, f.rows[0], f.rows[3], -1}), true);
  CHECK_EQ(int{verdicts[3]}, int{kParentMalformed});
  const Rows absent{-1, -2, -3, -4}, gone{-1, 12};
  batch_parents(f.table, f.rows, absent, gone, kCommittedState, parents.data(), verdicts.data());
  CHECK_EQ(verdicts == (std::vector<std::uint8_t>{0, 2, 2, 1}), true);
  CHECK(throws<std::invalid_argument>(
      [&] { batch_parents(f.table, f.rows, gone, gone, 2, parents.data(), verdicts.data()); }));
}

TEST(a_batch_is_ready_when_its_parents_are) {
  Family f;
  for (std::size_t i = 0; i < 4; i++) {
    f.table.state[f.rows[i]] = kReserved;
    f.table.attempt[f.rows[i]] = 5 + i;
  }
  const std::vector<std::uint64_t> attempts{5, 6, 7, 8};
  CHECK_EQ(int{f.ready(f.rows, attempts)}, int{kReady});
  CHECK_EQ(int{f.ready({f.rows[1]}, {6})}, int{kNotReady});
  CHECK_EQ(int{f.ready({f.rows[3], f.rows[3]}, {8, 8})}, int{kNotReady});
  CHECK_EQ(int{f.ready({f.rows[3]}, {7})}, int{kNotReady});
  CHECK_EQ(int{f.ready({-1}, {5})}, int{kNotReady});
  f.table.attempt[f.rows[3]] = 9;
  CHECK_EQ(int{f.ready({f.rows[3]}, {9})}, int{kNotReady});
  f.table.state[f.rows[0]] = kCommittedState;
  CHECK_EQ(int{f.ready({f.rows[1]}, {6})}, int{kReady});
  f.table.flags[f.rows[0]] = kOrphan;
  CHECK_EQ(int{f.ready({f.rows[1]}, {6})}, int{kReadyWithFamily});
  f.table.flags[f.rows[0]] = 0;
  f.table.state[f.rows[2]] = kCommittedState;
  CHECK_EQ(int{f.ready({f.rows[1]}, {6})}, int{kReadyWithFamily});
}

// What `reserve_new` says of keys with these parents, and what it did.
struct Reserving {
  Table& table;
  Rows rows, parents;

  bool operator()(const std::string& blob, const std::vector<std::uint32_t>& ends,
                  const Rows& parent_of, const std::string& outside = "") {
    const std::vector<std::uint64_t> sizes(ends.size(), 10);
    std::vector<std::uint32_t> outside_ends;
    for (std::uint32_t i = 0; i < outside.size(); i++) outside_ends.push_back(i + 1);
    rows.assign(ends.size(), -1);
    parents.assign(ends.size(), -1);
    const KeyBatch keys(blob, ends), others(outside, outside_ends);
    return reserve_new(table, {keys, sizes, parent_of, others, kCommittedState},
                       {kReserved, 1, 0, 7, 3, 5, 5, 0}, rows.data(), parents.data());
  }
};

TEST(new_keys_are_reserved_together_with_their_parents) {
  Family f;
  Reserving reserve{f.table, {}, {}};
  CHECK(reserve("xyz", {1, 2, 3}, {-2, 0, -1}, "d"));
  CHECK_EQ(reserve.parents == (Rows{f.rows[3], reserve.rows[0], -1}), true);
  CHECK_EQ(f.table.tree.parent[reserve.rows[1]], reserve.rows[0]);
  for (std::uint32_t i = 0; i < 3; i++) {
    const std::int32_t row = reserve.rows[i];
    CHECK_EQ(int{f.table.state[row]}, int{kReserved});
    CHECK_EQ(f.table.attempt[row], 5U + i);
    CHECK_EQ(f.table.seq[row], 5U + i);
    CHECK_EQ(f.table.tenant[row], 7U);
    CHECK_EQ(f.table.object_size[row], 10U);
  }
}

TEST(a_batch_that_is_not_all_new_changes_nothing) {
  Family f;
  Reserving reserve{f.table, {}, {}};
  f.table.state[f.rows[3]] = kReserved;
  CHECK(!reserve("xa", {1, 2}, {-1, -1}));  // known
  CHECK(!reserve("xx", {1, 2}, {-1, -1}));  // named twice
  CHECK(!reserve("xy", {1, 2}, {1, -1}));   // a parent after its child
  CHECK(!reserve("x", {1}, {-2}, "d"));     // a parent without a value
  CHECK(!reserve("x", {1}, {-2}, "q"));     // no such parent
  CHECK(!reserve("x", {1}, {-3}, "a"));     // a parent that is not named
  CHECK_EQ(f.table.size(), 4U);
  CHECK(throws<std::invalid_argument>([&] { reserve("xy", {1, 2}, {-1}); }));
  CHECK(throws<std::invalid_argument>([&] { reserve("xy", {2, 1}, {-1, -1}); }));
  CHECK(reserve("xy", {1, 2}, {-2, 0}, "a"));
  CHECK_EQ(f.table.size(), 6U);
}

TEST(a_ready_batch_is_committed_whole_or_not_at_all) {
  Family f;
  Reserving reserve{f.table, {}, {}};
  CHECK(reserve("xy", {1, 2}, {-1, 0}));
  Rows by_slot(8, -1);
  by_slot[3] = f.replicas[3];
  std::vector<std::uint64_t> attempts{5, 6};
  const auto commit = [&](const std::vector<std::uint32_t>& slots) {
    const std::vector<std::uint64_t> generations{11, 12};
    const std::vector<std::uint32_t> crcs{21, 22};
    return int{commit_whole(f.table, by_slot,
                            {reserve.rows, attempts, 2, slots, generations, crcs, true},
                            {5, 2, kReserved, kCommittedState, kOrphan})};
  };
  CHECK_EQ(commit({3, 4}), int{kNotReady});  // holds something
  CHECK_EQ(commit({4, 4}), int{kNotReady});
  CHECK_EQ(commit({4, 8}), int{kNotReady});
  attempts[1] = 7;
  CHECK_EQ(commit({4, 5}), int{kNotReady});
  attempts[1] = 6;
  CHECK_EQ(std::count(by_slot.begin(), by_slot.end(), -1), 7);
  CHECK_EQ(commit({5, 4}), int{kReady});
  CHECK_EQ(int{f.table.state[reserve.rows[1]]}, int{kCommittedState});
  CHECK_EQ(f.table.replicas.object[by_slot[5]], reserve.rows[0]);
  CHECK_EQ(f.table.replicas.slot[by_slot[4]], 4U);
  CHECK_EQ(f.table.replicas.generation[by_slot[4]], 12U);
  CHECK_EQ(f.table.crc[reserve.rows[1]], 22U);
  CHECK_EQ(commit({6, 7}), int{kNotReady});  // done already
}

TEST(slots_are_vacant_in_bounds_and_named_once) {
  const Rows by_slot{-1, 3, -1, -1};
  const auto vacant = [&](std::vector<std::uint32_t> slots) {
    return slots_vacant(by_slot, slots);
  };
  CHECK_EQ(vacant({0, 2, 3}) && vacant({3, 0, 2}) && vacant({}), true);
  CHECK_EQ(vacant({1}) || vacant({4}) || vacant({2, 2}) || vacant({3, 0, 3}), false);
}

}  // namespace
}  // namespace moonpool

TEST_MAIN()
