#include "key_map.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>

#include "table_error.hpp"

namespace moonpool {
namespace {

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
    : seed_(draw_seed()), at_(rows_max), numbers_(rows_max), rows_max_(rows_max) {}

std::uint32_t KeyMap::tag(std::string_view key) const {
  return static_cast<std::uint32_t>(hash(key, seed_) >> 32);
}

KeyHeap::At KeyMap::find(std::uint32_t tag, std::string_view key) const {
  return index_.find(tag, [&](KeyHeap::At at) { return heap_.key(at) == key; });
}

// Cache misses of neighbours overlap: first all index cells, then all candidate keys.
void KeyMap::ask_for(const KeyBatch& keys, std::size_t from, std::size_t to,
                     std::uint32_t* tags) const {
  for (std::size_t i = from; i < to; i++) {
    tags[i - from] = tag(keys[i]);
    index_.prefetch(tags[i - from]);
  }
  for (std::size_t i = from; i < to; i++) {
    const KeyHeap::At at = index_.find(tags[i - from], [](KeyHeap::At) { return true; });
    if (at != 0) heap_.prefetch(at);
  }
}

void KeyMap::find(const KeyBatch& keys, std::int32_t* rows) const {
  std::array<std::uint32_t, kAhead> tags;
  for (std::size_t from = 0; from < keys.size(); from += kAhead) {
    const std::size_t to = std::min(from + kAhead, keys.size());
    ask_for(keys, from, to, tags.data());
    for (std::size_t i = from; i < to; i++) {
      const KeyHeap::At at = find(tags[i - from], keys[i]);
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
        const KeyHeap::At at = find(tags[i - from], keys[i]);
        fresh[i] = at == 0;
        if (!fresh[i]) {
          rows[i] = heap_.row(at);
          continue;
        }
        if (numbers_.left() == 0) {
          throw TableFull("all " + std::to_string(rows_max_) + " rows are taken");
        }
        const std::int32_t row = numbers_.take();
        try {
          at_[row] = heap_.append(row, keys[i]);
          index_.insert(tags[i - from], at_[row]);
        } catch (...) {
          if (at_[row] != 0) heap_.erase(std::exchange(at_[row], 0));
          numbers_.undo(row, row >= high_before);
          throw;
        }
        rows[i] = row;
      }
    }
  } catch (...) {
    while (done-- > 0) {
      if (!fresh[done]) continue;
      const std::int32_t row = rows[done];
      index_.erase(tag(keys[done]), at_[row]);
      heap_.erase(at_[row]);
      at_[row] = 0;
      numbers_.undo(row, row >= high_before);
    }
    throw;
  }
}

void KeyMap::erase(std::span<const std::int32_t> rows) {
  std::array<std::uint32_t, kAhead> tags;
  for (; !rows.empty(); rows = rows.subspan(std::min(kAhead, rows.size()))) {
    const auto some = rows.first(std::min(kAhead, rows.size()));
    for (const std::int32_t row : some) heap_.prefetch(at_[row]);
    for (std::size_t i = 0; i < some.size(); i++) {
      tags[i] = tag(key(some[i]));
      index_.prefetch(tags[i]);
    }
    for (std::size_t i = 0; i < some.size(); i++) erase(some[i], tags[i]);
  }
}

void KeyMap::erase(std::int32_t row, std::uint32_t row_tag) {
  const KeyHeap::At at = at_[row];
  index_.erase(row_tag, at);
  heap_.erase(at);
  at_[row] = 0;
  numbers_.give(row);
  heap_.compact([this](std::int32_t moved, std::string_view key, KeyHeap::At from, KeyHeap::At to) {
    index_.replace(tag(key), from, to);
    at_[moved] = to;
  });
}

std::size_t KeyMap::memory_bytes() const {
  return index_.memory_bytes() + static_cast<std::size_t>(high()) * sizeof(KeyHeap::At) +
         numbers_.memory_bytes() + heap_.bytes();
}

}  // namespace moonpool
