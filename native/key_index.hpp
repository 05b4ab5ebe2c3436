// Hash tag -> place in the key heap: open addressing with linear probing. A cell's home follows
// from its tag alone, so moving cells to a larger array looks at no key; it goes on a few cells per
// insert, so that no call pauses for the whole index. Deleting leaves no tombstones.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "column.hpp"
#include "key_heap.hpp"

namespace moonpool {

struct IndexCell {
  std::uint32_t tag;
  KeyHeap::At at;  // 0: empty
};

// A power of two of cells; the highest bits of a tag are its home.
class IndexCells {
 public:
  explicit IndexCells(std::size_t count)
      : shift_(count == 0 ? 0 : 32 - std::countr_zero(count)), cells_(count) {}

  std::size_t size() const { return cells_.size(); }
  std::size_t mask() const { return cells_.size() - 1; }
  std::size_t home(std::uint32_t tag) const { return tag >> shift_; }
  IndexCell& operator[](std::size_t cell) { return cells_[cell & mask()]; }
  const IndexCell& operator[](std::size_t cell) const { return cells_[cell & mask()]; }

  void put(IndexCell cell);
  void clear(std::size_t cell);

 private:
  int shift_;
  Column<IndexCell> cells_;
};

class KeyIndex {
 public:
  KeyIndex() : now_(kCellsMin), old_(0) {}

  // The place under this tag for which same(at) holds, or 0.
  template <class Same>
  KeyHeap::At find(std::uint32_t tag, Same same) const {
    const IndexCells& cells = cells_of(tag);
    for (std::size_t i = cells.home(tag);; i++) {
      const IndexCell cell = cells[i];
      if (cell.at == 0 || (cell.tag == tag && same(cell.at))) return cell.at;
    }
  }
  void prefetch(std::uint32_t tag) const {
    const IndexCells& cells = cells_of(tag);
    __builtin_prefetch(&cells[cells.home(tag)]);
  }

  void insert(std::uint32_t tag, KeyHeap::At at);
  void erase(std::uint32_t tag, KeyHeap::At at);
  void replace(std::uint32_t tag, KeyHeap::At from, KeyHeap::At to);

  std::size_t memory_bytes() const { return (now_.size() + old_.size()) * sizeof(IndexCell); }

 private:
  static constexpr std::size_t kCellsMin = 64;
  static constexpr std::size_t kCellsPerStep = 16;

  // While growing: cells whose home is among the first `moved_` from `start_` on are in now_, all
  // others in old_. `moved_` always ends after an empty cell, so no probe crosses it.
  bool growing() const { return old_.size() != 0; }
  const IndexCells& cells_of(std::uint32_t tag) const {
    const bool waits = growing() && ((old_.home(tag) - start_) & old_.mask()) >= moved_;
    return waits ? old_ : now_;
  }
  IndexCells& cells_of(std::uint32_t tag) {
    return const_cast<IndexCells&>(std::as_const(*this).cells_of(tag));
  }
  static std::size_t locate(const IndexCells& cells, std::uint32_t tag, KeyHeap::At at);
  void grow();
  void move_some();

  IndexCells now_, old_;
  std::size_t start_ = 0, moved_ = 0;
  std::size_t count_ = 0;
};

}  // namespace moonpool
