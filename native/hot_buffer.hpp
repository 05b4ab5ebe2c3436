// A fixed number of rows per layer kept in local memory: which of the wanted rows are here, who
// makes room for those that are not, and where they are fetched from. One request's, used by one
// thread at a time.
//
// A call takes the positions of one or more layers. Rows of one call never push each other out, so
// `slots` must be at least as many as one layer asks for. A position that stands twice is one row:
// the second is a hit.
//
//   miss -> second level (rows pushed out earlier, if there is one) -> the source
//
// The source is either a RowTable, in the same call (`fetch`), or anything else in two steps:
// `begin` says what is missing, `finish` brings it, `abandon` gives up.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "column.hpp"
#include "row_table.hpp"
#include "status.hpp"

namespace moonpool {

enum class HotPolicy : std::uint8_t { kLru, kFifo, kRandom };

struct HotCounters {
  std::uint64_t calls = 0;   // one per layer asked for
  std::uint64_t rows = 0;    // asked for: hits + misses
  std::uint64_t hits = 0;    // were here
  std::uint64_t misses = 0;  // were not: second-level hits + fetched
  std::uint64_t second_hits = 0;
  std::uint64_t fetched = 0;  // rows that came from the source
  std::uint64_t evicted = 0;  // rows pushed out of the first level
  std::uint64_t second_evicted = 0;
};

// Positions of one layer to its slots: open addressing, at most half full, erasing moves
// neighbours back.
class PositionMap {
 public:
  explicit PositionMap(std::uint32_t entries_max);
  static constexpr std::uint32_t kAbsent = ~0u;
  std::uint32_t find(std::uint32_t position) const;
  void insert(std::uint32_t position, std::uint32_t slot);  // must be absent
  void erase(std::uint32_t position);                       // must be there
  std::size_t memory_bytes() const { return cells_.size() * sizeof(Cell); }

 private:
  struct Cell {
    std::uint32_t position;
    std::uint32_t slot;
  };
  std::uint32_t home(std::uint32_t position) const {
    return static_cast<std::uint32_t>((position * 0x9e3779b97f4a7c15ull) >> shift_);
  }
  std::vector<Cell> cells_;
  std::uint32_t mask_;
  std::uint32_t shift_;
};

// A list of slots by age, oldest first; slots are 0 .. count - 1.
class AgeList {
 public:
  static constexpr std::uint32_t kEnd = ~0u;
  explicit AgeList(std::uint32_t count) : links_(count) {}
  void push_newest(std::uint32_t slot);
  void remove(std::uint32_t slot);
  std::uint32_t oldest() const { return oldest_; }
  std::uint32_t newer(std::uint32_t slot) const { return links_[slot].newer; }

 private:
  struct Links {
    std::uint32_t older = kEnd;
    std::uint32_t newer = kEnd;
  };
  std::vector<Links> links_;
  std::uint32_t oldest_ = kEnd;
  std::uint32_t newest_ = kEnd;
};

// Rows that were pushed out, all layers together: the oldest goes first; a row that is taken back
// leaves.
class SecondLevel;

class HotBuffer {
 public:
  // Throws std::invalid_argument for sizes of nothing.
  HotBuffer(std::uint32_t layers, std::uint32_t slots, std::uint32_t row_bytes, HotPolicy policy,
            std::uint64_t seed, std::uint32_t second_rows);
  ~HotBuffer();

  struct Missing {
    std::uint32_t layer;
    std::uint32_t position;
    std::uint32_t slot;
  };

  // Layer `layers[i]` wants the next `counts[i]` of `positions`; their slots, in the same order.
  // Throws std::invalid_argument for lists that do not fit each other or this buffer (nothing has
  // changed then), std::logic_error while another call is open. A layer whose rows have moved away
  // keeps nothing of what it missed; layers before it are complete.
  Gathered fetch(const RowTable& source, std::span<const std::uint32_t> layers,
                 std::span<const std::uint32_t> counts, std::span<const std::uint32_t> positions,
                 std::span<std::uint32_t> slots);

  // The same in two steps: what is missing, by layer in the order asked; then its rows, one after
  // another. Between the two the buffer answers nothing else.
  const std::vector<Missing>& begin(std::span<const std::uint32_t> layers,
                                    std::span<const std::uint32_t> counts,
                                    std::span<const std::uint32_t> positions,
                                    std::span<std::uint32_t> slots);
  void finish(const std::uint8_t* rows);
  void abandon();  // forgets the missing positions again

  // Forgets all rows; counters stay.
  void clear();

  std::uint8_t* layer_rows(std::uint32_t layer);
  std::uint32_t layers() const { return static_cast<std::uint32_t>(layers_.size()); }
  std::uint32_t slots() const { return slots_; }
  std::uint32_t row_bytes() const { return row_bytes_; }
  std::uint32_t resident(std::uint32_t layer) const { return layers_[layer].used; }
  bool open() const { return open_; }
  const HotCounters& counters() const { return counters_; }
  // Rows of both levels, and what is needed to find them.
  std::size_t row_memory_bytes() const;
  std::size_t index_memory_bytes() const;
  std::uint8_t* memory() { return rows_.data(); }
  std::shared_ptr<void> memory_owner() const { return rows_.memory(); }

 private:
  struct Layer {
    explicit Layer(std::uint32_t slots);
    PositionMap map;
    AgeList ages;
    std::vector<std::uint32_t> positions;  // by slot
    std::vector<std::uint64_t> stamps;     // by slot: the call that last asked for it
    std::uint32_t used = 0;                // slots 0 .. used - 1 hold rows, but for `spare`
    std::vector<std::uint32_t> spare;      // slots given back
  };

  void check(std::span<const std::uint32_t> layers, std::span<const std::uint32_t> counts,
             std::span<const std::uint32_t> positions, std::span<const std::uint32_t> slots) const;
  void resolve(std::uint32_t layer, std::span<const std::uint32_t> positions,
               std::span<std::uint32_t> slots);
  std::uint32_t make_room(std::uint32_t number, Layer& layer);
  void forget(const Missing& missing);

  const std::uint32_t slots_;
  const std::uint32_t row_bytes_;
  const HotPolicy policy_;
  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  std::uint64_t stamp_ = 0;
  std::vector<Layer> layers_;
  Column<std::uint8_t> rows_;
  std::unique_ptr<SecondLevel> second_;
  std::vector<std::uint8_t> swap_;
  std::vector<Missing> missing_;
  bool open_ = false;
  HotCounters counters_;
};

}  // namespace moonpool
