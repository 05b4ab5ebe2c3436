// Steps of the catalog's decisions that look at many rows: what would go, what may be granted, what
// is ready. They find out; flags and states are given by the caller, who also decides.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "table.hpp"

namespace moonpool {

// Closures (a row and all below it, children first) in the order of the candidates.
struct Victims {
  Table::RowList rows;                                    // closures back to back
  std::vector<std::uint32_t> ends;                        // of each closure in `rows`
  std::vector<std::uint64_t> freed_bytes, freed_objects;  // on the segment, up to each closure
  Table::RowList spared;  // candidates whose closure has a kept member
};

struct VictimRules {
  std::uint16_t segment;
  std::uint64_t bytes, objects;  // stop once this much is freed on the segment
  std::uint8_t kept_flags;       // a closure with one of these flags stays,
  std::uint8_t kept_state;       // or with a row in this state
  std::uint8_t chosen_flag;      // set on what is taken; what has it already counts as gone
};

Victims collect_victims(Table& table, Table::Rows candidates, const VictimRules& rules);

// Parents of a batch by place: parent_of is an earlier place, -1 none, -2 - j the row outside[j].
enum ParentVerdict : std::uint8_t { kParentFine = 0, kParentMalformed = 1, kParentMissing = 2 };
void batch_parents(const Table& table, Table::Rows rows, std::span<const std::int32_t> parent_of,
                   std::span<const std::int32_t> outside, std::uint8_t state, std::int32_t* parents,
                   std::uint8_t* verdicts);

struct ReadyRules {
  std::uint64_t first, count;  // attempts [first, first + count)
  std::uint8_t state_from, state_to, orphan_flag;
};
enum Readiness : std::uint8_t { kNotReady = 0, kReady = 1, kReadyWithFamily = 2 };
// kReady: each row is named once, in state_from, has its attempt, and its parent is none, in
// state_to or named before it. kReadyWithFamily: so, but a parent is an orphan or a row has
// children in state_to.
Readiness commit_ready(Table& table, Table::Rows rows, std::span<const std::uint64_t> attempts,
                       const ReadyRules& rules);

// A batch of keys that nobody knows yet, promised whole. False when it is none: a key is known or
// named twice, or a parent is neither none, nor named before, nor in `parent_state`; then nothing
// has changed. `outside` holds the keys that parent_of names by -2 - j.
struct NewBatch {
  const KeyBatch& keys;
  std::span<const std::uint64_t> sizes;
  std::span<const std::int32_t> parent_of;
  const KeyBatch& outside;
  std::uint8_t parent_state;
};
bool reserve_new(Table& table, const NewBatch& batch, const Table::Reservation& with,
                 std::int32_t* rows, std::int32_t* parents);

// Each slot is in bounds, named once, and holds no replica (-1).
bool slots_vacant(std::span<const std::int32_t> by_slot, std::span<const std::uint32_t> slots);

// One replica each of a ready batch, in vacant slots of one segment, which `by_slot` is told. Else
// kNotReady, and nothing has changed.
struct WholeCommit {
  Table::Rows rows;
  std::span<const std::uint64_t> attempts;
  std::uint16_t segment;
  std::span<const std::uint32_t> slots;
  std::span<const std::uint64_t> generations;
  std::span<const std::uint32_t> crcs;
  bool touch_ancestors;
};
Readiness commit_whole(Table& table, std::span<std::int32_t> by_slot, const WholeCommit& commit,
                       const ReadyRules& rules);

}  // namespace moonpool
