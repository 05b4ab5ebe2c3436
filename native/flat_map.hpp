// A small hash map from 64-bit words to values, open addressing, for tables that are mostly empty
// and must count their memory. Erasing moves neighbours back, so churn leaves nothing behind.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mix.hpp"

namespace moonpool {

template <class Value>
class FlatMap {
 public:
  // Null when absent; valid until the next insert or erase.
  Value* find(std::uint64_t key) {
    const std::size_t cell = cell_of(key);
    return cell == kAbsent ? nullptr : &cells_[cell].value;
  }
  const Value* find(std::uint64_t key) const { return const_cast<FlatMap*>(this)->find(key); }
  bool contains(std::uint64_t key) const { return find(key) != nullptr; }

  // The value of `key`, made from nothing when absent.
  Value& at(std::uint64_t key) {
    if (Value* found = find(key)) return *found;
    if ((count_ + 1) * 4 > cells_.size() * 3) grow();
    std::size_t i = home(key);
    while (cells_[i].used) i = next(i);
    cells_[i].used = true;
    cells_[i].key = key;
    count_++;
    return cells_[i].value;
  }

  bool erase(std::uint64_t key) {
    std::size_t hole = cell_of(key);
    if (hole == kAbsent) return false;
    for (std::size_t i = next(hole); cells_[i].used; i = next(i)) {
      // A cell may fill the hole when its home does not lie behind the hole.
      if (((i - home(cells_[i].key)) & mask()) < ((i - hole) & mask())) continue;
      cells_[hole] = std::move(cells_[i]);
      hole = i;
    }
    cells_[hole] = Cell{};
    count_--;
    if (count_ == 0) clear();
    return true;
  }

  void clear() {
    std::vector<Cell>().swap(cells_);
    count_ = 0;
  }

  template <class Visit>
  void each(Visit visit) const {
    for (const Cell& cell : cells_) {
      if (cell.used) visit(cell.key, cell.value);
    }
  }

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  std::size_t memory_bytes() const { return cells_.size() * sizeof(Cell); }

 private:
  struct Cell {
    std::uint64_t key = 0;
    Value value{};
    bool used = false;
  };

  static constexpr std::size_t kAbsent = ~std::size_t{0};

  std::size_t cell_of(std::uint64_t key) const {
    if (count_ == 0) return kAbsent;
    for (std::size_t i = home(key);; i = next(i)) {
      if (!cells_[i].used) return kAbsent;
      if (cells_[i].key == key) return i;
    }
  }

  std::size_t mask() const { return cells_.size() - 1; }
  std::size_t home(std::uint64_t key) const { return mix64(key) & mask(); }
  std::size_t next(std::size_t i) const { return (i + 1) & mask(); }

  void grow() {
    std::vector<Cell> old(cells_.empty() ? 8 : cells_.size() * 2);
    old.swap(cells_);
    for (Cell& cell : old) {
      if (!cell.used) continue;
      std::size_t i = home(cell.key);
      while (cells_[i].used) i = next(i);
      cells_[i] = std::move(cell);
    }
  }

  std::vector<Cell> cells_;
  std::size_t count_ = 0;
};

}  // namespace moonpool
