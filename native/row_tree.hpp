// Parents and children of rows: links only. Walks use no recursion and no memory beyond the answer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "column.hpp"

namespace moonpool {

class RowTree {
 public:
  explicit RowTree(std::size_t rows_max);

  // A fresh row stands alone.
  void reset(std::int32_t row);
  // Puts the row first among the children of parent (-1: takes it out). False if that would close
  // a cycle; then nothing changed.
  bool link(std::int32_t row, std::int32_t parent);
  void unlink(std::int32_t row);

  // Children before parents, each row once, siblings from the newest on.
  std::vector<std::int32_t> descendants(std::span<const std::int32_t> rows);
  // The order that touching each row and then its ancestors, row by row, would leave.
  std::vector<std::int32_t> ancestors(std::span<const std::int32_t> rows);

  Column<std::int32_t> parent, first_child, next_sibling, prev_sibling;
  Column<std::uint32_t> children;
  Marks marks;  // free for other walks between calls
};

}  // namespace moonpool
