#include "row_table.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "copy.hpp"
#include "prefetch.hpp"
#include "segment_slot.hpp"

namespace moonpool {
namespace {

constexpr std::size_t kAhead = 8;   // rows that are asked for before they are copied
constexpr std::size_t kPart = 128;  // rows that somebody takes at a time: some tens of microseconds
constexpr std::uint32_t kCopyBytes = 512 << 10;  // the same of rows that follow each other
constexpr std::uint32_t kNoShift = 32;

}  // namespace

RowTable::RowTable(const RowShape& shape, std::vector<RowUnit> units)
    : shape_(shape), units_(std::move(units)) {
  if (shape.row_bytes == 0 || shape.unit_tokens == 0 || shape.layers == 0) {
    throw std::invalid_argument("a row table needs row_bytes, unit_tokens and layers above 0");
  }
  if (units_.size() * std::uint64_t{shape.unit_tokens} < shape.tokens) {
    throw std::invalid_argument(std::to_string(units_.size()) + " units of " +
                                std::to_string(shape.unit_tokens) + " tokens do not hold " +
                                std::to_string(shape.tokens));
  }
  shift_ = std::has_single_bit(shape.unit_tokens)
               ? static_cast<std::uint32_t>(std::countr_zero(shape.unit_tokens))
               : kNoShift;
  guarded_ = std::any_of(units_.begin(), units_.end(),
                         [](const RowUnit& unit) { return unit.guard != nullptr; });
}

const RowUnit& RowTable::unit_of(std::uint32_t position) const {
  return units_[shift_ < kNoShift ? position >> shift_ : position / shape_.unit_tokens];
}

const std::uint8_t* RowTable::row(std::uint32_t layer, std::uint32_t position) const {
  const RowUnit& unit = unit_of(position);
  const std::uint32_t inside =
      shift_ < kNoShift ? position & (shape_.unit_tokens - 1) : position % shape_.unit_tokens;
  return unit.base + layer * unit.layer_stride + std::uint64_t{inside} * shape_.row_bytes;
}

Gathered RowTable::check(std::uint32_t layer, std::span<const std::uint32_t> positions) const {
  if (layer >= shape_.layers) return {Status::kBounds, 0};
  std::uint32_t highest = 0;
  for (const std::uint32_t position : positions) highest = std::max(highest, position);
  if (highest < shape_.tokens || positions.empty()) return {};
  const auto bad = std::find_if(positions.begin(), positions.end(),
                                [&](std::uint32_t p) { return p >= shape_.tokens; });
  return {Status::kBounds, static_cast<std::size_t>(bad - positions.begin())};
}

void RowTable::move_rows(std::uint32_t layer, std::span<const std::uint32_t> positions,
                         std::uint8_t* to, std::span<const std::uint32_t> slots,
                         std::size_t first) const {
  const std::size_t count = positions.size();
  const std::size_t bytes = shape_.row_bytes;
  // Only its first line: the core finds the others itself, and asking for each costs more than it
  // brings.
  const auto ask = [&](std::size_t i) { prefetch(row(layer, positions[i])); };
  for (std::size_t i = 0; i < std::min(kAhead, count); i++) ask(i);
  for (std::size_t i = 0; i < count; i++) {
    if (i + kAhead < count) ask(i + kAhead);
    const std::size_t slot = slots.empty() ? first + i : slots[first + i];
    std::memcpy(to + slot * bytes, row(layer, positions[i]), bytes);
  }
  read_fence();
}

Gathered RowTable::gather(std::uint32_t layer, std::span<const std::uint32_t> positions,
                          std::uint8_t* to, std::span<const std::uint32_t> slots,
                          Helpers* helpers) const {
  Gathered result = check(layer, positions);
  if (result.status != Status::kOk) return result;
  const std::size_t count = positions.size();
  // A whole pass of loads before the first byte: the same words are in cache for the second one.
  auto moved = [&]() -> std::size_t {
    for (std::size_t i = 0; guarded_ && i < count; i++) {
      const RowUnit& unit = unit_of(positions[i]);
      if (unit.guard && unit.guard->load(std::memory_order_acquire) != unit.expected) return i;
    }
    return count;
  };
  if (std::size_t at = moved(); at < count) return {Status::kMoved, at};
  if (helpers == nullptr) {
    move_rows(layer, positions, to, slots, 0);
  } else {
    helpers->run((count + kPart - 1) / kPart, [&](std::size_t part) {
      const std::size_t first = part * kPart;
      const std::size_t here = std::min(kPart, count - first);
      move_rows(layer, positions.subspan(first, here), to, slots, first);
    });
  }
  if (std::size_t at = moved(); at < count) return {Status::kMoved, at};
  return {};
}

bool RowTable::holds(std::uint32_t first, std::uint32_t count, std::uint32_t* moved) const {
  if (!guarded_) return true;
  const std::uint32_t end = first + count;
  for (std::uint64_t at = first; at < end;
       at = (at / shape_.unit_tokens + 1) * shape_.unit_tokens) {
    const RowUnit& unit = unit_of(static_cast<std::uint32_t>(at));
    if (!unit.guard || unit.guard->load(std::memory_order_acquire) == unit.expected) continue;
    *moved = static_cast<std::uint32_t>(at);
    return false;
  }
  return true;
}

void RowTable::copy_rows(std::uint32_t layer, std::uint32_t first, std::uint32_t count,
                         std::uint8_t* to, bool past_caches) const {
  std::vector<CopyPiece> pieces;
  for (std::uint32_t left = count; left > 0;) {
    const std::uint32_t here = std::min(left, shape_.unit_tokens - first % shape_.unit_tokens);
    pieces.push_back({row(layer, first), std::size_t{here} * shape_.row_bytes});
    first += here;
    left -= here;
  }
  if (past_caches) {
    copy_past_caches(to, pieces);
  } else {
    for (const CopyPiece& piece : pieces) {
      std::memcpy(to, piece.data, piece.size);
      to += piece.size;
    }
  }
  read_fence();
}

Gathered RowTable::copy(std::uint32_t layer, std::uint32_t first, std::uint32_t count,
                        std::uint8_t* to, Helpers* helpers) const {
  if (layer >= shape_.layers || first > shape_.tokens || count > shape_.tokens - first) {
    return {Status::kBounds, 0};
  }
  if (count == 0) return {};
  std::uint32_t moved = 0;
  const auto told = [&] { return Gathered{Status::kMoved, std::size_t{moved - first}}; };
  // As in a gather: all words, all bytes, all words again.
  if (!holds(first, count, &moved)) return told();
  const bool past_caches = std::uint64_t{count} * shape_.row_bytes >= kStreamBytes;
  if (helpers == nullptr) {
    copy_rows(layer, first, count, to, past_caches);
  } else {
    const std::uint32_t rows = std::max<std::uint32_t>(1, kCopyBytes / shape_.row_bytes);
    helpers->run((count + rows - 1) / rows, [&](std::size_t part) {
      const auto done = static_cast<std::uint32_t>(part * rows);
      const std::uint32_t here = std::min(rows, count - done);
      copy_rows(layer, first + done, here, to + std::size_t{done} * shape_.row_bytes, past_caches);
    });
  }
  if (!holds(first, count, &moved)) return told();
  return {};
}

const std::uint8_t* RowTable::run(std::uint32_t layer,
                                  std::span<const std::uint32_t> positions) const {
  if (positions.empty() || &unit_of(positions.front()) != &unit_of(positions.back())) {
    return nullptr;
  }
  for (std::size_t i = 1; i < positions.size(); i++) {
    if (positions[i] != positions[i - 1] + 1) return nullptr;
  }
  return row(layer, positions.front());
}

}  // namespace moonpool
