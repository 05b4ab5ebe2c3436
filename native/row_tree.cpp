#include "row_tree.hpp"

#include <algorithm>

namespace moonpool {

RowTree::RowTree(std::size_t rows_max)
    : parent(rows_max),
      first_child(rows_max),
      next_sibling(rows_max),
      prev_sibling(rows_max),
      children(rows_max),
      marks(rows_max) {}

void RowTree::reset(std::int32_t row) {
  parent[row] = first_child[row] = next_sibling[row] = prev_sibling[row] = -1;
  children[row] = 0;
}

bool RowTree::link(std::int32_t row, std::int32_t to) {
  if (row == to) return false;
  // A row without children cannot be anybody's ancestor: the usual put costs no walk.
  if (first_child[row] >= 0) {
    for (std::int32_t above = to; above >= 0; above = parent[above]) {
      if (above == row) return false;
    }
  }
  if (parent[row] == to) return true;
  unlink(row);
  if (to < 0) return true;
  const std::int32_t after = first_child[to];
  parent[row] = to;
  next_sibling[row] = after;
  if (after >= 0) prev_sibling[after] = row;
  first_child[to] = row;
  children[to]++;
  return true;
}

void RowTree::unlink(std::int32_t row) {
  const std::int32_t above = parent[row];
  if (above < 0) return;
  const std::int32_t before = prev_sibling[row], after = next_sibling[row];
  (before >= 0 ? next_sibling[before] : first_child[above]) = after;
  if (after >= 0) prev_sibling[after] = before;
  children[above]--;
  parent[row] = next_sibling[row] = prev_sibling[row] = -1;
}

std::vector<std::int32_t> RowTree::descendants(std::span<const std::int32_t> rows) {
  std::vector<std::int32_t> order;
  marks.begin();
  for (const std::int32_t root : rows) {
    if (marks.seen(root)) continue;
    // A marked row has all below it in the answer already.
    std::int32_t at = root;
    bool enter = true;
    while (true) {
      if (enter && !marks.seen(at) && first_child[at] >= 0) {
        at = first_child[at];
        continue;
      }
      if (marks.mark(at)) order.push_back(at);
      if (at == root) break;
      enter = next_sibling[at] >= 0;
      at = enter ? next_sibling[at] : parent[at];
    }
  }
  return order;
}

std::vector<std::int32_t> RowTree::ancestors(std::span<const std::int32_t> rows) {
  std::vector<std::int32_t> order;
  order.reserve(rows.size());
  marks.begin();
  // Backwards, each chain from its highest new row down: what a later chain holds is touched last.
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    const std::size_t chain = order.size();
    for (std::int32_t at = *row; at >= 0 && marks.mark(at); at = parent[at]) order.push_back(at);
    std::reverse(order.begin() + static_cast<std::ptrdiff_t>(chain), order.end());
  }
  std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace moonpool
