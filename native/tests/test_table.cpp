// The row table without Python: key map under churn and growth, tree walks, recency lists,
// refusals.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "table.hpp"

namespace moonpool {
namespace {

using Rows = std::vector<std::int32_t>;

struct Batch {
  std::string blob;
  std::vector<std::uint32_t> ends;

  explicit Batch(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      blob += name;
      ends.push_back(static_cast<std::uint32_t>(blob.size()));
    }
  }
  KeyBatch keys() const { return {blob, ends}; }
};

Rows intern(Table& table, const std::vector<std::string>& names) {
  const Batch batch(names);
  Rows rows(names.size());
  const auto fresh = std::make_unique<bool[]>(names.size());
  table.intern(batch.keys(), rows.data(), fresh.get());
  return rows;
}

Rows find(const Table& table, const std::vector<std::string>& names) {
  const Batch batch(names);
  Rows rows(names.size());
  table.find(batch.keys(), rows.data());
  return rows;
}

Rows add(Table& table, const Rows& rows, std::uint16_t segment = 0) {
  const std::vector<std::uint16_t> segments(rows.size(), segment);
  const std::vector<std::uint32_t> slots(rows.size());
  const std::vector<std::uint64_t> generations(rows.size());
  Rows added(rows.size());
  table.add_replicas(rows, segments, slots, generations, added.data());
  return added;
}

void chain(Table& table, const Rows& rows) {
  const Table::Rows all(rows);
  const auto linked = std::make_unique<bool[]>(rows.size());
  table.set_parent(all.subspan(1), all.first(rows.size() - 1), linked.get());
}

template <class Error, class Call>
bool throws(Call call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

TEST(keys_survive_growth_and_churn) {
  constexpr unsigned kSeed = 20260;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Table table(1 << 20, 1, 1);
  std::map<std::string, std::int32_t> model;
  for (int step = 0; step < 60'000; step++) {
    const std::string name =
        std::to_string(random() % 30'000) + std::string(random() % 3 * 100, 'k');
    const auto known = model.find(name);
    CHECK_EQ(find(table, {name})[0], known == model.end() ? -1 : known->second);
    if (known == model.end()) {
      model[name] = intern(table, {name})[0];
    } else if (random() % 2 == 0) {
      table.erase(Rows{known->second});
      model.erase(known);
    }
  }
  CHECK_EQ(table.size(), model.size());
  for (const auto& [name, row] : model) CHECK(table.key(row) == name);
}

// Tags at both ends of the array make runs that go over its end, at every moment of growing.
TEST(the_index_finds_every_cell_while_it_grows) {
  for (unsigned seed = 1; seed <= 20; seed++) {
    std::printf("seed %u\n", seed);
    std::mt19937 random(seed);
    KeyIndex index;
    std::map<KeyHeap::At, std::uint32_t> model;
    const auto near_an_end = [&] { return static_cast<std::uint32_t>(random() % 64) - 32; };
    for (KeyHeap::At at = 1; at <= 700; at++) {
      const std::uint32_t tag = random() % 3 == 0 ? near_an_end() << 24 : random();
      index.insert(tag, at);
      model[at] = tag;
      if (random() % 4 == 0) {
        const auto gone = std::next(model.begin(), random() % model.size());
        index.erase(gone->second, gone->first);
        model.erase(gone);
      }
      for (const auto& [place, its] : model) {
        CHECK_EQ(index.find(its, [&, place = place](KeyHeap::At a) { return a == place; }), place);
      }
    }
  }
}

TEST(erasing_most_keys_returns_their_memory) {
  Table table(1 << 20, 1, 1);
  Rows rows;
  for (int i = 0; i < 50'000; i++) {
    rows.push_back(intern(table, {std::string(200, 'k') + std::to_string(i)})[0]);
  }
  const std::size_t full = table.memory_bytes();
  std::shuffle(rows.begin(), rows.end(), std::mt19937(1));
  const Rows kept(rows.begin(), rows.begin() + 1'000);
  rows.erase(rows.begin(), rows.begin() + 1'000);
  table.erase(rows);
  CHECK(full - table.memory_bytes() > 9'000'000);
  for (const std::int32_t row : kept) CHECK_EQ(find(table, {std::string(table.key(row))})[0], row);
}

TEST(a_full_table_keeps_what_it_had) {
  Table table(2, 1, 1);
  const Rows rows = intern(table, {"a"});
  CHECK(throws<TableFull>([&] { intern(table, {"b", "a", "c"}); }));
  CHECK_EQ(table.size(), 1);
  CHECK(find(table, {"a", "b", "c"}) == (Rows{rows[0], -1, -1}));
  CHECK(intern(table, {"c"}) == Rows{1});
}

TEST(walks_give_children_before_parents) {
  Table table(16, 1, 1);
  const Rows rows = intern(table, {"root", "left", "leaf", "right"});
  chain(table, {rows[0], rows[1], rows[2]});
  chain(table, {rows[0], rows[3]});
  CHECK(table.descendants(Rows{rows[1], rows[0]}) == (Rows{rows[2], rows[1], rows[3], rows[0]}));
  CHECK(table.ancestors_order(Rows{rows[2], rows[3]}) ==
        (Rows{rows[2], rows[1], rows[3], rows[0]}));
}

TEST(a_long_chain_needs_no_stack) {
  constexpr int kLength = 200'000;
  Table table(kLength, 1, 1);
  Rows rows;
  for (int i = 0; i < kLength; i++) rows.push_back(intern(table, {std::to_string(i)})[0]);
  chain(table, rows);
  CHECK_EQ(table.descendants(Rows{rows[0]}).size(), kLength);
  CHECK_EQ(table.ancestors_order(Rows{rows.back()}).back(), rows[0]);
  std::reverse(rows.begin(), rows.end());
  table.erase(rows);
  CHECK_EQ(table.size(), 0);
}

TEST(a_touch_of_a_child_touches_its_ancestors) {
  Table table(16, 16, 1);
  const Rows rows = intern(table, {"root", "child", "other"});
  chain(table, {rows[0], rows[1]});
  const Rows added = add(table, rows);
  table.list_push(0, added);
  const std::vector<std::uint64_t> seqs(1);
  CHECK_EQ(table.touch_objects(Rows{rows[1]}, seqs), 1);
  CHECK(table.list_iter(0) == (Rows{added[2], added[1], added[0]}));
}

TEST(unknown_rows_are_refused) {
  Table table(4, 4, 1);
  const Rows rows = intern(table, {"a"});
  for (const std::int32_t bad : {-1, 1, 3, 4, INT32_MAX, INT32_MIN}) {
    CHECK(throws<std::out_of_range>([&] { table.erase(Rows{rows[0], bad}); }));
    CHECK(throws<std::out_of_range>([&] { table.remove_replicas(Rows{bad}); }));
    CHECK(throws<std::out_of_range>([&] { add(table, {bad}); }));
  }
  CHECK_EQ(table.size(), 1);
}

TEST(old_marks_do_not_look_new_after_many_calls) {
  Marks marks(4, UINT32_MAX - 1);
  marks.begin();
  CHECK(marks.mark(2));
  CHECK(!marks.mark(2));
  marks.begin();  // the count of calls begins anew here
  CHECK(!marks.seen(0));
  CHECK(!marks.seen(2));
  CHECK(marks.mark(2));
}

}  // namespace
}  // namespace moonpool

TEST_MAIN()
