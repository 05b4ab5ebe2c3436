// Key -> row: an open-addressing index of (hash tag, place in the key heap) with linear probing.
// The full key is compared always. A cell's home follows from its tag alone, so growing reads the
// old cells in order and writes the new ones in order, and deleting leaves no tombstones.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "column.hpp"
#include "key_heap.hpp"

namespace moonpool {

// Keys of one call: a blob and where each key ends in it.
class KeyBatch {
 public:
  // Throws std::invalid_argument unless the ends cut the whole blob into keys of 1..1024 bytes.
  KeyBatch(std::string_view blob, std::span<const std::uint32_t> ends);

  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::uint32_t start = i == 0 ? 0 : ends_[i - 1];
    return blob_.substr(start, ends_[i] - start);
  }

 private:
  std::string_view blob_;
  std::span<const std::uint32_t> ends_;
};

class KeyMap {
 public:
  explicit KeyMap(std::size_t rows_max);

  // rows[i] = the key's row or -1.
  void find(const KeyBatch& keys, std::int32_t* rows) const;
  // As find, making rows for absent keys; nothing stays changed when it throws TableFull.
  void intern(const KeyBatch& keys, std::int32_t* rows, bool* fresh);
  void erase(std::int32_t row);

  bool live(std::int32_t row) const {
    return static_cast<std::uint32_t>(row) < static_cast<std::uint32_t>(numbers_.high()) &&
           at_[row] != 0;
  }
  std::string_view key(std::int32_t row) const { return heap_.key(at_[row]); }
  std::int32_t high() const { return numbers_.high(); }
  std::size_t size() const { return numbers_.taken(); }
  std::size_t memory_bytes() const;

 private:
  struct Cell {
    std::uint32_t tag;
    KeyHeap::At at;  // 0: empty
  };
  static constexpr std::size_t kAhead = 32;  // keys whose memory is asked for at once

  std::uint32_t tag(std::string_view key) const;
  std::size_t home(std::uint32_t tag) const { return tag >> shift_; }
  std::size_t next(std::size_t cell) const { return (cell + 1) & (cells_.size() - 1); }
  // The cell of the key, or the empty cell where it would go.
  std::size_t locate(std::uint32_t tag, std::string_view key) const;
  std::size_t locate(std::uint32_t tag, KeyHeap::At at) const;
  void ask_for(const KeyBatch& keys, std::size_t from, std::size_t to, std::uint32_t* tags) const;
  void clear(std::size_t cell);
  void grow();

  std::uint64_t seed_;  // drawn per table: clients cannot choose keys that collide
  int shift_;
  Column<Cell> cells_;
  Column<KeyHeap::At> at_;  // by row; 0: no such row
  RowNumbers numbers_;
  KeyHeap heap_;
  std::size_t rows_max_;
};

}  // namespace moonpool
