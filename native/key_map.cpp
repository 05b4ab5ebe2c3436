#include "key_map.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "table_error.hpp"

namespace moonpool {
namespace {

constexpr std::size_t kCellsMin = 64;

std::uint64_t load(const char* at, std::size_t size) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, size);
  return value;
}

// The two halves of the 128-bit product, folded: every bit of both reaches every bit.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t hash(std::string_view key, std::uint64_t seed) {
  constexpr std::uint64_t kA = 0x9E3779B97F4A7C15u, kB = 0xD1B54A32D192ED03u;
  const char* at = key.data();
  std::size_t left = key.size();
  std::uint64_t state = seed ^ kA;
  for (; left > 16; at += 16, left -= 16) {
    state = fold(load(at, 8) ^ kA ^ state, load(at + 8, 8) ^ kB ^ seed);
  }
  const std::uint64_t low = load(at, std::min<std::size_t>(left, 8));
  const std::uint64_t high = left > 8 ? load(at + 8, left - 8) : 0;
  state = fold(low ^ kA ^ state, high ^ kB ^ seed);
  return fold(state ^ kB, key.size() ^ kA ^ seed);
}

std::uint64_t draw_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

KeyBatch::KeyBatch(std::string_view blob, std::span<const std::uint32_t> ends)
    : blob_(blob), ends_(ends) {
  std::uint32_t start = 0;
  for (const std::uint32_t end : ends) {
    if (end < start || end > blob.size()) {
      throw std::invalid_argument("ends: " + std::to_string(end) + " after " +
                                  std::to_string(start) + " in a blob of " +
                                  std::to_string(blob.size()) + " bytes");
    }
    if (end == start || end - start > kKeyBytesMax) {
      throw std::invalid_argument("a key of " + std::to_string(end - start) +
                                  " bytes; 1 to 1024 are allowed");
    }
    start = end;
  }
  if (start != blob.size()) {
    throw std::invalid_argument("ends: the last is " + std::to_string(start) + ", the blob has " +
                                std::to_string(blob.size()) + " bytes");
  }
}

KeyMap::KeyMap(std::size_t rows_max)
    : seed_(draw_seed()),
      shift_(32 - std::countr_zero(kCellsMin)),
      cells_(kCellsMin),
      at_(rows_max),
      numbers_(rows_max),
      rows_max_(rows_max) {}

std::uint32_t KeyMap::tag(std::string_view key) const {
  return static_cast<std::uint32_t>(hash(key, seed_) >> 32);
}

std::size_t KeyMap::locate(std::uint32_t tag, std::string_view key) const {
  std::size_t cell = home(tag);
  while (cells_[cell].at != 0 && (cells_[cell].tag != tag || heap_.key(cells_[cell].at) != key)) {
    cell = next(cell);
  }
  return cell;
}

std::size_t KeyMap::locate(std::uint32_t tag, KeyHeap::At at) const {
  std::size_t cell = home(tag);
  while (cells_[cell].at != at) cell = next(cell);
  return cell;
}

// Cache misses of neighbours overlap: first all index cells, then all candidate keys.
void KeyMap::ask_for(const KeyBatch& keys, std::size_t from, std::size_t to,
                     std::uint32_t* tags) const {
  for (std::size_t i = from; i < to; i++) {
    tags[i - from] = tag(keys[i]);
    __builtin_prefetch(&cells_[home(tags[i - from])]);
  }
  for (std::size_t i = from; i < to; i++) {
    const std::uint32_t wanted = tags[i - from];
    std::size_t cell = home(wanted);
    while (cells_[cell].at != 0 && cells_[cell].tag != wanted) cell = next(cell);
    if (cells_[cell].at != 0) heap_.prefetch(cells_[cell].at);
  }
}

void KeyMap::find(const KeyBatch& keys, std::int32_t* rows) const {
  std::array<std::uint32_t, kAhead> tags;
  for (std::size_t from = 0; from < keys.size(); from += kAhead) {
    const std::size_t to = std::min(from + kAhead, keys.size());
    ask_for(keys, from, to, tags.data());
    for (std::size_t i = from; i < to; i++) {
      const KeyHeap::At at = cells_[locate(tags[i - from], keys[i])].at;
      rows[i] = at != 0 ? heap_.row(at) : -1;
    }
  }
}

void KeyMap::intern(const KeyBatch& keys, std::int32_t* rows, bool* fresh) {
  std::array<std::uint32_t, kAhead> tags;
  std::size_t done = 0;
  const std::int32_t high_before = numbers_.high();
  try {
    for (std::size_t from = 0; from < keys.size(); from += kAhead) {
      const std::size_t to = std::min(from + kAhead, keys.size());
      ask_for(keys, from, to, tags.data());
      for (std::size_t i = from; i < to; i++, done++) {
        std::size_t cell = locate(tags[i - from], keys[i]);
        fresh[i] = cells_[cell].at == 0;
        if (!fresh[i]) {
          rows[i] = heap_.row(cells_[cell].at);
          continue;
        }
        if (numbers_.left() == 0) {
          throw TableFull("all " + std::to_string(rows_max_) + " rows are taken");
        }
        if ((size() + 1) * 4 > cells_.size() * 3) {
          grow();
          cell = locate(tags[i - from], keys[i]);
        }
        const std::int32_t row = numbers_.take();
        try {
          at_[row] = heap_.append(row, keys[i]);
        } catch (...) {
          numbers_.undo(row, row >= high_before);
          throw;
        }
        cells_[cell] = {tags[i - from], at_[row]};
        rows[i] = row;
      }
    }
  } catch (...) {
    while (done-- > 0) {
      if (!fresh[done]) continue;
      const std::int32_t row = rows[done];
      clear(locate(tag(keys[done]), at_[row]));
      heap_.erase(at_[row]);
      at_[row] = 0;
      numbers_.undo(row, row >= high_before);
    }
    throw;
  }
}

void KeyMap::erase(std::int32_t row) {
  const KeyHeap::At at = at_[row];
  clear(locate(tag(heap_.key(at)), at));
  heap_.erase(at);
  at_[row] = 0;
  numbers_.give(row);
  heap_.compact([this](std::int32_t moved, std::string_view key, KeyHeap::At from, KeyHeap::At to) {
    cells_[locate(tag(key), from)].at = to;
    at_[moved] = to;
  });
}

// Moves later cells of the run back over the hole, unless that would put one before its home.
void KeyMap::clear(std::size_t cell) {
  const std::size_t mask = cells_.size() - 1;
  std::size_t hole = cell;
  for (std::size_t at = next(hole); cells_[at].at != 0; at = next(at)) {
    const std::size_t from_home = (at - home(cells_[at].tag)) & mask;
    if (from_home >= ((at - hole) & mask)) {
      cells_[hole] = cells_[at];
      hole = at;
    }
  }
  cells_[hole] = {};
}

void KeyMap::grow() {
  Column<Cell> old(cells_.size() * 2);
  std::swap(old, cells_);
  shift_--;
  // Begin after an empty cell, so that a run over the end is met in order too.
  std::size_t start = 0;
  while (old[start].at != 0) start++;
  for (std::size_t i = 1; i <= old.size(); i++) {
    const Cell& cell = old[(start + i) & (old.size() - 1)];
    if (cell.at == 0) continue;
    std::size_t to = home(cell.tag);
    while (cells_[to].at != 0) to = next(to);
    cells_[to] = cell;
  }
}

std::size_t KeyMap::memory_bytes() const {
  return cells_.size() * sizeof(Cell) + static_cast<std::size_t>(high()) * sizeof(KeyHeap::At) +
         numbers_.memory_bytes() + heap_.bytes();
}

}  // namespace moonpool
