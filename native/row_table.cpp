#include "row_table.hpp"

#include <algorithm>
#include <atomic>
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

bool RowTable::copy_unit(std::uint32_t layer, std::uint32_t position, std::uint32_t count,
                         std::uint8_t* to, bool past_caches) const {
  const RowUnit& unit = unit_of(position);
  const auto holds = [&] {
    return !unit.guard || unit.guard->load(std::memory_order_acquire) == unit.expected;
  };
  if (!holds()) return false;
  const std::size_t bytes = std::size_t{count} * shape_.row_bytes;
  if (past_caches) {
    copy_past_caches(to, row(layer, position), bytes);
  } else {
    std::memcpy(to, row(layer, position), bytes);
  }
  read_fence();
  return holds();
}

Gathered RowTable::copy(std::uint32_t layer, std::uint32_t first, std::uint32_t count,
                        std::uint8_t* to, Helpers* helpers) const {
  if (layer >= shape_.layers || first > shape_.tokens || count > shape_.tokens - first) {
    return {Status::kBounds, 0};
  }
  if (count == 0) return {};
  // Units are small beside what they add up to: the size of the whole decides.
  const bool past_caches = std::uint64_t{count} * shape_.row_bytes >= kStreamBytes;
  const std::uint32_t unit = first / shape_.unit_tokens;
  const std::size_t parts = (first + count - 1) / shape_.unit_tokens - unit + 1;
  std::atomic<std::size_t> moved{count};  // the first row that has another owner
  const auto copy_part = [&](std::size_t part) {
    const std::uint64_t begin = (unit + part) * std::uint64_t{shape_.unit_tokens};
    const auto from = static_cast<std::uint32_t>(std::max<std::uint64_t>(begin, first));
    const auto end = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(begin + shape_.unit_tokens, std::uint64_t{first} + count));
    const std::size_t done = from - first;
    if (done > moved.load(std::memory_order_relaxed)) return;
    if (copy_unit(layer, from, end - from, to + done * shape_.row_bytes, past_caches)) return;
    std::size_t least = moved.load(std::memory_order_relaxed);
    while (done < least && !moved.compare_exchange_weak(least, done, std::memory_order_relaxed)) {
    }
  };
  if (helpers == nullptr) {
    for (std::size_t part = 0; part < parts; part++) copy_part(part);
  } else {
    helpers->run(parts, copy_part);
  }
  const std::size_t at = moved.load(std::memory_order_relaxed);
  return at < count ? Gathered{Status::kMoved, at} : Gathered{};
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
