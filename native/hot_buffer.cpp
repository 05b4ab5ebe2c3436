#include "hot_buffer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "flat_map.hpp"
#include "mix.hpp"

namespace moonpool {

PositionMap::PositionMap(std::uint32_t entries_max)
    : cells_(std::bit_ceil(std::max(entries_max, 4u) * std::size_t{2}), Cell{0, kAbsent}),
      mask_(static_cast<std::uint32_t>(cells_.size() - 1)),
      shift_(64 - static_cast<std::uint32_t>(std::countr_zero(cells_.size()))) {}

std::uint32_t PositionMap::find(std::uint32_t position) const {
  for (std::uint32_t i = home(position);; i = (i + 1) & mask_) {
    if (cells_[i].slot == kAbsent || cells_[i].position == position) return cells_[i].slot;
  }
}

void PositionMap::insert(std::uint32_t position, std::uint32_t slot) {
  std::uint32_t i = home(position);
  while (cells_[i].slot != kAbsent) i = (i + 1) & mask_;
  cells_[i] = {position, slot};
}

void PositionMap::erase(std::uint32_t position) {
  std::uint32_t hole = home(position);
  while (cells_[hole].position != position || cells_[hole].slot == kAbsent)
    hole = (hole + 1) & mask_;
  for (std::uint32_t i = (hole + 1) & mask_; cells_[i].slot != kAbsent; i = (i + 1) & mask_) {
    // A cell may fill the hole when its home does not lie behind the hole.
    if (((i - home(cells_[i].position)) & mask_) < ((i - hole) & mask_)) continue;
    cells_[hole] = cells_[i];
    hole = i;
  }
  cells_[hole] = {0, kAbsent};
}

void AgeList::push_newest(std::uint32_t slot) {
  links_[slot] = {newest_, kEnd};
  (newest_ == kEnd ? oldest_ : links_[newest_].newer) = slot;
  newest_ = slot;
}

void AgeList::remove(std::uint32_t slot) {
  const Links gone = links_[slot];
  (gone.older == kEnd ? oldest_ : links_[gone.older].newer) = gone.newer;
  (gone.newer == kEnd ? newest_ : links_[gone.newer].older) = gone.older;
}

class SecondLevel {
 public:
  SecondLevel(std::uint32_t rows, std::uint32_t row_bytes)
      : row_bytes_(row_bytes),
        rows_(std::size_t{rows} * row_bytes),
        ages_(rows),
        names_(rows),
        max_(rows) {}

  static std::uint64_t name(std::uint32_t layer, std::uint32_t position) {
    return std::uint64_t{layer} << 32 | position;
  }

  // Moves the row out to `to`; false: it is not here.
  bool take(std::uint64_t name, std::uint8_t* to) {
    const std::uint32_t* found = map_.find(name);
    if (!found) return false;
    const std::uint32_t slot = *found;
    std::memcpy(to, row(slot), row_bytes_);
    map_.erase(name);
    ages_.remove(slot);
    free_.push_back(slot);
    return true;
  }

  // True: the oldest row had to go.
  bool put(std::uint64_t name, const std::uint8_t* from) {
    bool evicted = false;
    std::uint32_t slot = used_;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else if (used_ < max_) {
      used_++;
    } else {
      slot = ages_.oldest();
      ages_.remove(slot);
      map_.erase(names_[slot]);
      evicted = true;
    }
    std::memcpy(row(slot), from, row_bytes_);
    names_[slot] = name;
    map_.at(name) = slot;
    ages_.push_newest(slot);
    return evicted;
  }

  void clear() {
    while (ages_.oldest() != AgeList::kEnd) ages_.remove(ages_.oldest());
    map_.clear();
    free_.clear();
    used_ = 0;
  }

  std::size_t row_memory_bytes() const { return rows_.size(); }
  std::size_t index_memory_bytes() const { return map_.memory_bytes() + max_ * std::size_t{16}; }

 private:
  std::uint8_t* row(std::uint32_t slot) { return rows_.data() + std::size_t{slot} * row_bytes_; }

  const std::uint32_t row_bytes_;
  Column<std::uint8_t> rows_;
  FlatMap<std::uint32_t> map_;
  AgeList ages_;
  std::vector<std::uint64_t> names_;
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;
  const std::uint32_t max_;
};

HotBuffer::Layer::Layer(std::uint32_t slots)
    : map(slots), ages(slots), positions(slots), stamps(slots, 0) {}

HotBuffer::HotBuffer(std::uint32_t layers, std::uint32_t slots, std::uint32_t row_bytes,
                     HotPolicy policy, std::uint64_t seed, std::uint32_t second_rows)
    : slots_(slots),
      row_bytes_(row_bytes),
      policy_(policy),
      seed_(seed),
      rows_(std::size_t{layers} * slots * row_bytes),
      swap_(row_bytes) {
  if (layers == 0 || slots == 0 || row_bytes == 0) {
    throw std::invalid_argument("a hot buffer needs layers, rows and row_bytes above 0");
  }
  layers_.reserve(layers);
  for (std::uint32_t i = 0; i < layers; i++) layers_.emplace_back(slots);
  if (second_rows > 0) second_ = std::make_unique<SecondLevel>(second_rows, row_bytes);
}

HotBuffer::~HotBuffer() = default;

std::uint8_t* HotBuffer::layer_rows(std::uint32_t layer) {
  return rows_.data() + std::size_t{layer} * slots_ * row_bytes_;
}

void HotBuffer::check(std::span<const std::uint32_t> layers, std::span<const std::uint32_t> counts,
                      std::span<const std::uint32_t> positions,
                      std::span<const std::uint32_t> slots) const {
  if (open_) throw std::logic_error("a call is open on this hot buffer: finish or abandon it");
  if (layers.size() != counts.size()) throw std::invalid_argument("one count per layer is needed");
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < layers.size(); i++) {
    if (layers[i] >= layers_.size()) {
      throw std::invalid_argument("layer " + std::to_string(layers[i]) + " is not one of the " +
                                  std::to_string(layers_.size()) + " of this hot buffer");
    }
    if (i > 0 && layers[i] <= layers[i - 1]) {
      throw std::invalid_argument("the layers of one call must ascend, none twice");
    }
    if (counts[i] > slots_) {
      throw std::invalid_argument(std::to_string(counts[i]) + " rows do not fit a hot buffer of " +
                                  std::to_string(slots_) + " rows a layer");
    }
    total += counts[i];
  }
  if (total != positions.size() || slots.size() != positions.size()) {
    throw std::invalid_argument("counts add up to " + std::to_string(total) + ", positions are " +
                                std::to_string(positions.size()));
  }
}

// Hits first, so that what makes room is never a row of this very call.
void HotBuffer::resolve(std::uint32_t number, std::span<const std::uint32_t> positions,
                        std::span<std::uint32_t> slots) {
  Layer& layer = layers_[number];
  stamp_++;
  counters_.calls++;
  counters_.rows += positions.size();
  for (std::size_t i = 0; i < positions.size(); i++) {
    const std::uint32_t slot = slots[i] = layer.map.find(positions[i]);
    if (slot == PositionMap::kAbsent) continue;
    layer.stamps[slot] = stamp_;
    if (policy_ != HotPolicy::kLru) continue;
    layer.ages.remove(slot);
    layer.ages.push_newest(slot);
  }
  for (std::size_t i = 0; i < positions.size(); i++) {
    const std::uint32_t position = positions[i];
    if (slots[i] != PositionMap::kAbsent) {
      counters_.hits++;
      continue;
    }
    if (const std::uint32_t twin = layer.map.find(position); twin != PositionMap::kAbsent) {
      slots[i] = twin;  // the same position stood earlier in this call
      counters_.hits++;
      continue;
    }
    counters_.misses++;
    const bool second = second_ && second_->take(SecondLevel::name(number, position), swap_.data());
    const std::uint32_t slot = slots[i] = make_room(number, layer);
    layer.map.insert(position, slot);
    layer.positions[slot] = position;
    layer.stamps[slot] = stamp_;
    layer.ages.push_newest(slot);
    if (second) {
      counters_.second_hits++;
      std::memcpy(layer_rows(number) + std::size_t{slot} * row_bytes_, swap_.data(), row_bytes_);
    } else {
      missing_.push_back({number, position, slot});
    }
  }
}

std::uint32_t HotBuffer::make_room(std::uint32_t number, Layer& layer) {
  if (!layer.spare.empty()) {
    const std::uint32_t slot = layer.spare.back();
    layer.spare.pop_back();
    return slot;
  }
  if (layer.used < slots_) return layer.used++;
  std::uint32_t slot = layer.ages.oldest();
  if (policy_ == HotPolicy::kRandom) {
    do {
      slot = static_cast<std::uint32_t>(mix64(seed_ + ++draws_) % slots_);
    } while (layer.stamps[slot] == stamp_);
  }
  while (layer.stamps[slot] == stamp_) slot = layer.ages.newer(slot);
  counters_.evicted++;
  if (second_) {
    const std::uint8_t* row = layer_rows(number) + std::size_t{slot} * row_bytes_;
    counters_.second_evicted += second_->put(SecondLevel::name(number, layer.positions[slot]), row);
  }
  layer.map.erase(layer.positions[slot]);
  layer.ages.remove(slot);
  return slot;
}

void HotBuffer::forget(const Missing& missing) {
  Layer& layer = layers_[missing.layer];
  layer.map.erase(missing.position);
  layer.ages.remove(missing.slot);
  layer.stamps[missing.slot] = 0;
  layer.spare.push_back(missing.slot);
}

Gathered HotBuffer::fetch(const RowTable& source, std::span<const std::uint32_t> layers,
                          std::span<const std::uint32_t> counts,
                          std::span<const std::uint32_t> positions,
                          std::span<std::uint32_t> slots) {
  check(layers, counts, positions, slots);
  if (source.shape().row_bytes != row_bytes_) {
    throw std::invalid_argument("rows of " + std::to_string(source.shape().row_bytes) +
                                " bytes do not fit a hot buffer of rows of " +
                                std::to_string(row_bytes_));
  }
  // Before anything is pushed out for a row that cannot be had.
  for (std::size_t i = 0; i < layers.size(); i++) {
    if (layers[i] >= source.shape().layers) return {Status::kBounds, 0};
  }
  for (std::size_t i = 0; i < positions.size(); i++) {
    if (positions[i] >= source.shape().tokens) return {Status::kBounds, i};
  }
  std::size_t done = 0;
  std::vector<std::uint32_t> wanted, places;
  for (std::size_t i = 0; i < layers.size(); i++) {
    missing_.clear();
    resolve(layers[i], positions.subspan(done, counts[i]), slots.subspan(done, counts[i]));
    wanted.clear();
    places.clear();
    for (const Missing& missing : missing_) {
      wanted.push_back(missing.position);
      places.push_back(missing.slot);
    }
    const Gathered got = source.gather(layers[i], wanted, layer_rows(layers[i]), places);
    if (got.status != Status::kOk) {
      for (const Missing& missing : missing_) forget(missing);
      return {got.status, done + got.at};
    }
    counters_.fetched += wanted.size();
    done += counts[i];
  }
  return {};
}

const std::vector<HotBuffer::Missing>& HotBuffer::begin(std::span<const std::uint32_t> layers,
                                                        std::span<const std::uint32_t> counts,
                                                        std::span<const std::uint32_t> positions,
                                                        std::span<std::uint32_t> slots) {
  check(layers, counts, positions, slots);
  missing_.clear();
  std::size_t done = 0;
  for (std::size_t i = 0; i < layers.size(); i++) {
    resolve(layers[i], positions.subspan(done, counts[i]), slots.subspan(done, counts[i]));
    done += counts[i];
  }
  open_ = true;
  return missing_;
}

void HotBuffer::finish(const std::uint8_t* rows) {
  if (!open_) throw std::logic_error("no call is open on this hot buffer");
  for (const Missing& missing : missing_) {
    std::memcpy(layer_rows(missing.layer) + std::size_t{missing.slot} * row_bytes_, rows,
                row_bytes_);
    rows += row_bytes_;
  }
  counters_.fetched += missing_.size();
  open_ = false;
}

void HotBuffer::abandon() {
  if (!open_) return;
  for (const Missing& missing : missing_) forget(missing);
  open_ = false;
}

void HotBuffer::clear() {
  abandon();
  for (Layer& layer : layers_) layer = Layer(slots_);
  if (second_) second_->clear();
}

std::size_t HotBuffer::row_memory_bytes() const {
  return rows_.size() + (second_ ? second_->row_memory_bytes() : 0);
}

std::size_t HotBuffer::index_memory_bytes() const {
  std::size_t bytes = second_ ? second_->index_memory_bytes() : 0;
  // Per slot: its position, its stamp, two links.
  for (const Layer& layer : layers_) bytes += layer.map.memory_bytes() + slots_ * std::size_t{20};
  return bytes;
}

}  // namespace moonpool
