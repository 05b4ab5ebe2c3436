#include "key_index.hpp"

namespace moonpool {

void IndexCells::put(IndexCell cell) {
  std::size_t to = home(cell.tag);
  while ((*this)[to].at != 0) to++;
  (*this)[to] = cell;
}

// Moves later cells of the run back over the hole, unless that would put one before its home.
void IndexCells::clear(std::size_t cell) {
  std::size_t hole = cell;
  for (std::size_t i = hole + 1; (*this)[i].at != 0; i++) {
    const std::size_t from_home = (i - home((*this)[i].tag)) & mask();
    if (from_home >= ((i - hole) & mask())) {
      (*this)[hole] = (*this)[i];
      hole = i;
    }
  }
  (*this)[hole] = {};
}

std::size_t KeyIndex::locate(const IndexCells& cells, std::uint32_t tag, KeyHeap::At at) {
  std::size_t cell = cells.home(tag);
  while (cells[cell].at != at) cell++;
  return cell;
}

void KeyIndex::insert(std::uint32_t tag, KeyHeap::At at) {
  if (growing()) {
    move_some();
  } else if ((count_ + 1) * 4 > now_.size() * 3) {
    grow();
  }
  cells_of(tag).put({tag, at});
  count_++;
}

void KeyIndex::erase(std::uint32_t tag, KeyHeap::At at) {
  IndexCells& cells = cells_of(tag);
  cells.clear(locate(cells, tag, at));
  count_--;
}

void KeyIndex::replace(std::uint32_t tag, KeyHeap::At from, KeyHeap::At to) {
  IndexCells& cells = cells_of(tag);
  cells[locate(cells, tag, from)].at = to;
}

void KeyIndex::grow() {
  IndexCells larger(now_.size() * 2);
  std::swap(old_, now_);
  std::swap(now_, larger);
  start_ = moved_ = 0;
  while (old_[start_].at != 0) start_++;
  start_++;
}

// Ends after an empty cell: the last run may reach over the array's end, into cells moved before.
void KeyIndex::move_some() {
  for (std::size_t steps = 0;; steps++) {
    IndexCell& cell = old_[start_ + moved_++];
    if (cell.at != 0) {
      now_.put(cell);
      cell = {};
    } else if (steps >= kCellsPerStep || moved_ >= old_.size()) {
      break;
    }
  }
  if (moved_ >= old_.size()) old_ = IndexCells(0);
}

}  // namespace moonpool
