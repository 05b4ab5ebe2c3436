// Where the rows of one prefix lie, and how chosen ones are copied out: the read side of sparse
// attention. A row is the cache entry of one token in one layer. Rows lie in units of `unit_tokens`
// tokens (a page of a sparse segment, an object of the pool); in a unit a layer's rows are
// contiguous and layers lie `layer_stride` bytes apart.
//
// A unit may have a guard: a word that must hold `expected` before and after its rows are copied.
// Whoever reuses the memory changes the word first, so a copy under which it changed is never told
// as good. The table only reads; it must not outlive the memory it points into.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "helpers.hpp"
#include "status.hpp"

namespace moonpool {

struct RowUnit {
  const std::uint8_t* base = nullptr;  // layer 0, first row
  std::uint64_t layer_stride = 0;
  const std::atomic<std::uint64_t>* guard = nullptr;
  std::uint64_t expected = 0;
};

struct RowShape {
  std::uint32_t row_bytes = 0;
  std::uint32_t unit_tokens = 0;
  std::uint32_t layers = 0;
  std::uint32_t tokens = 0;  // positions are 0 .. tokens - 1
};

// What became of a gather: on kBounds `at` is the index of the first bad position, on kMoved of
// the first whose unit has another owner.
struct Gathered {
  Status status = Status::kOk;
  std::size_t at = 0;
};

class RowTable {
 public:
  // Throws std::invalid_argument for a shape of nothing, or units that do not hold all tokens.
  RowTable(const RowShape& shape, std::vector<RowUnit> units);

  const RowShape& shape() const { return shape_; }
  // Row `positions[i]` of `layer` to `to + slots[i] * row_bytes`; without slots one after another.
  // Nothing is copied on kBounds; on kMoved the destination's content is undefined. With helpers
  // the rows are split between them and the caller: no two slots may be the same then.
  Gathered gather(std::uint32_t layer, std::span<const std::uint32_t> positions, std::uint8_t* to,
                  std::span<const std::uint32_t> slots = {}, Helpers* helpers = nullptr) const;
  // All rows [first, first + count) of `layer`, one after another; with helpers in parts.
  Gathered copy(std::uint32_t layer, std::uint32_t first, std::uint32_t count, std::uint8_t* to,
                Helpers* helpers = nullptr) const;
  // Where the rows of `positions` (checked by the caller) lie if they follow each other in one
  // unit, so that they need not be copied together; else null. Looks at no guard.
  const std::uint8_t* run(std::uint32_t layer, std::span<const std::uint32_t> positions) const;

 private:
  Gathered check(std::uint32_t layer, std::span<const std::uint32_t> positions) const;
  void move_rows(std::uint32_t layer, std::span<const std::uint32_t> positions, std::uint8_t* to,
                 std::span<const std::uint32_t> slots, std::size_t first) const;
  void copy_rows(std::uint32_t layer, std::uint32_t first, std::uint32_t count, std::uint8_t* to,
                 bool past_caches) const;
  // Whether all units of rows [first, first + count) have their owner; else the first that has not.
  bool holds(std::uint32_t first, std::uint32_t count, std::uint32_t* moved) const;
  const RowUnit& unit_of(std::uint32_t position) const;
  const std::uint8_t* row(std::uint32_t layer, std::uint32_t position) const;

  RowShape shape_;
  std::vector<RowUnit> units_;
  std::uint32_t shift_ = 0;  // of unit_tokens when it is a power of two, else 32
  bool guarded_ = false;
};

}  // namespace moonpool
