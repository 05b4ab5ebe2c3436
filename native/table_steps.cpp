#include "table_steps.hpp"

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace moonpool {
namespace {

// The row and all below it, children before parents, without what was chosen before: whoever has
// the flag had all below it taken along. Walking it again would cost a chain its square.
void closure_of(const Table& table, std::int32_t row, std::uint8_t chosen_flag,
                Table::RowList& closure, Table::RowList& stack) {
  closure.clear();
  stack.assign(1, row);
  while (!stack.empty()) {
    const std::int32_t at = stack.back();
    stack.pop_back();
    closure.push_back(at);
    for (std::int32_t child = table.tree.first_child[at]; child >= 0;
         child = table.tree.next_sibling[child]) {
      if ((table.flags[child] & chosen_flag) == 0) stack.push_back(child);
    }
  }
  std::ranges::reverse(closure);
}

bool kept(const Table& table, const Table::RowList& closure, const VictimRules& rules) {
  return std::ranges::any_of(closure, [&](std::int32_t row) {
    return (table.flags[row] & rules.kept_flags) != 0 || table.state[row] == rules.kept_state;
  });
}

bool has_child_in(const Table& table, std::int32_t row, std::uint8_t state) {
  for (std::int32_t at = table.tree.first_child[row]; at >= 0; at = table.tree.next_sibling[at]) {
    if (table.state[at] == state) return true;
  }
  return false;
}

}  // namespace

Victims collect_victims(Table& table, Table::Rows candidates, const VictimRules& rules) {
  Victims victims;
  Table::RowList closure, stack;
  std::uint64_t bytes = 0, objects = 0;
  for (const std::int32_t replica : candidates) {
    if (!table.replicas.live(replica)) throw std::out_of_range("candidates: not a live replica");
  }
  for (const std::int32_t replica : candidates) {
    if (bytes >= rules.bytes && objects >= rules.objects) break;
    const std::int32_t row = table.replicas.object[replica];
    if ((table.flags[row] & rules.chosen_flag) != 0) continue;
    closure_of(table, row, rules.chosen_flag, closure, stack);
    if (kept(table, closure, rules)) {
      victims.spared.push_back(replica);
      continue;
    }
    for (const std::int32_t member : closure) {
      table.flags[member] |= rules.chosen_flag;
      victims.rows.push_back(member);
      for (std::int32_t at = table.replicas.head[member]; at >= 0; at = table.replicas.next[at]) {
        if (table.replicas.segment[at] != rules.segment) continue;
        bytes += table.object_size[member];
        objects++;
      }
    }
    victims.ends.push_back(static_cast<std::uint32_t>(victims.rows.size()));
    victims.freed_bytes.push_back(bytes);
    victims.freed_objects.push_back(objects);
  }
  return victims;
}

void batch_parents(const Table& table, Table::Rows rows, std::span<const std::int32_t> parent_of,
                   std::span<const std::int32_t> outside, std::uint8_t state, std::int32_t* parents,
                   std::uint8_t* verdicts) {
  if (rows.size() != parent_of.size()) throw std::invalid_argument("columns differ in length");
  for (std::size_t i = 0; i < rows.size(); i++) {
    const std::int64_t place = parent_of[i];
    parents[i] = -1;
    verdicts[i] = kParentFine;
    if (place >= 0) {
      if (place < static_cast<std::int64_t>(i)) {
        parents[i] = rows[static_cast<std::size_t>(place)];
      } else {
        verdicts[i] = kParentMalformed;
      }
    } else if (place < -1) {
      const auto j = static_cast<std::size_t>(-2 - place);
      if (j >= outside.size()) {
        verdicts[i] = kParentMalformed;
      } else if (!table.live(outside[j]) || table.state[outside[j]] != state) {
        verdicts[i] = kParentMissing;
      } else {
        parents[i] = outside[j];
      }
    }
  }
}

bool reserve_new(Table& table, const NewBatch& batch, const Table::Reservation& with,
                 std::int32_t* rows, std::int32_t* parents) {
  const std::size_t n = batch.keys.size();
  if (batch.sizes.size() != n || batch.parent_of.size() != n) {
    throw std::invalid_argument("columns differ in length");
  }
  table.find(batch.keys, rows);
  if (std::any_of(rows, rows + n, [](std::int32_t row) { return row >= 0; })) return false;
  Table::RowList outside(batch.outside.size());
  table.find(batch.outside, outside.data());
  std::vector<std::uint8_t> verdicts(n);
  batch_parents(table, {rows, n}, batch.parent_of, outside, batch.parent_state, parents,
                verdicts.data());
  if (std::ranges::any_of(verdicts, [](auto one) { return one != kParentFine; })) return false;
  const auto fresh = std::make_unique<bool[]>(n);
  table.intern(batch.keys, rows, fresh.get());
  if (!std::all_of(fresh.get(), fresh.get() + n, [](bool one) { return one; })) {
    Table::RowList made;
    for (std::size_t i = 0; i < n; i++) {
      if (fresh[i]) made.push_back(rows[i]);
    }
    table.erase(made);
    return false;
  }
  batch_parents(table, {rows, n}, batch.parent_of, outside, batch.parent_state, parents,
                verdicts.data());
  // New rows have no children, so no parent of theirs can be below them.
  table.set_parent({rows, n}, {parents, n}, fresh.get());
  table.reserve_batch({rows, n}, batch.sizes, with);
  return true;
}

Readiness commit_ready(Table& table, Table::Rows rows, std::span<const std::uint64_t> attempts,
                       const ReadyRules& rules) {
  if (rows.size() != attempts.size()) throw std::invalid_argument("columns differ in length");
  Readiness answer = kReady;
  table.tree.marks.begin();
  for (std::size_t i = 0; i < rows.size(); i++) {
    const std::int32_t row = rows[i];
    if (!table.live(row) || table.state[row] != rules.state_from) return kNotReady;
    if (table.attempt[row] != attempts[i] || attempts[i] - rules.first >= rules.count) {
      return kNotReady;
    }
    const std::int32_t parent = table.tree.parent[row];
    if (parent >= 0 && !table.tree.marks.seen(parent)) {
      if (table.state[parent] != rules.state_to) return kNotReady;
      if ((table.flags[parent] & rules.orphan_flag) != 0) answer = kReadyWithFamily;
    }
    if (!table.tree.marks.mark(row)) return kNotReady;
    if (has_child_in(table, row, rules.state_to)) answer = kReadyWithFamily;
  }
  return answer;
}

bool slots_vacant(std::span<const std::int32_t> by_slot, std::span<const std::uint32_t> slots) {
  for (const std::uint32_t slot : slots) {
    if (slot >= by_slot.size() || by_slot[slot] >= 0) return false;
  }
  if (std::ranges::is_sorted(slots, std::ranges::less_equal{})) {
    return std::ranges::adjacent_find(slots) == slots.end();
  }
  std::vector<std::uint32_t> sorted(slots.begin(), slots.end());
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) == sorted.end();
}

Readiness commit_whole(Table& table, std::span<std::int32_t> by_slot, const WholeCommit& commit,
                       const ReadyRules& rules) {
  if (!slots_vacant(by_slot, commit.slots)) return kNotReady;
  const Readiness answer = commit_ready(table, commit.rows, commit.attempts, rules);
  if (answer == kNotReady) return kNotReady;
  for (const std::int32_t row : commit.rows) {
    if (table.replicas.head[row] >= 0) return kNotReady;
  }
  const std::vector<std::uint16_t> segments(commit.rows.size(), commit.segment);
  std::vector<std::uint8_t> status(commit.rows.size());
  Table::RowList added(commit.rows.size());
  table.commit_batch({commit.rows, commit.attempts, segments, commit.slots, commit.generations,
                      commit.crcs, rules.state_from, rules.state_to, commit.touch_ancestors},
                     status.data(), added.data());
  for (std::size_t i = 0; i < added.size(); i++) by_slot[commit.slots[i]] = added[i];
  return answer;
}

}  // namespace moonpool
