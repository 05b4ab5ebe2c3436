// Key -> row and back: the index finds candidates by a hash tag, the heap holds the keys, each with
// its row. The full key is compared always.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "column.hpp"
#include "key_heap.hpp"
#include "key_index.hpp"

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
  void erase(std::span<const std::int32_t> rows);  // live, each once

  bool live(std::int32_t row) const {
    return static_cast<std::uint32_t>(row) < static_cast<std::uint32_t>(numbers_.high()) &&
           at_[row] != 0;
  }
  std::string_view key(std::int32_t row) const { return heap_.key(at_[row]); }
  std::int32_t high() const { return numbers_.high(); }
  std::size_t size() const { return numbers_.taken(); }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kAhead = 32;  // keys whose memory is asked for at once

  std::uint32_t tag(std::string_view key) const;
  KeyHeap::At find(std::uint32_t tag, std::string_view key) const;
  void erase(std::int32_t row, std::uint32_t tag);
  void ask_for(const KeyBatch& keys, std::size_t from, std::size_t to, std::uint32_t* tags) const;

  std::uint64_t seed_;  // drawn per table: clients cannot choose keys that collide
  KeyIndex index_;
  Column<KeyHeap::At> at_;  // by row; 0: no such row
  RowNumbers numbers_;
  KeyHeap heap_;
  std::size_t rows_max_;
};

}  // namespace moonpool
