// An engine's cache, layer by layer, against objects that hold one block's layers back to back:
// what is loaded from a pool into an engine, and stored from it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "block_copy.hpp"

namespace moonpool {

// One layer: block i is made of pieces at i * stride + each of `pieces`, all of `piece_bytes`.
struct LayerMemory {
  Range memory;  // kept alive by somebody else
  std::uint64_t count = 0;
  std::uint64_t stride = 0;
  std::vector<std::uint64_t> pieces;
  std::uint64_t piece_bytes = 0;
};

// How many layers are in place: one thread fills, others wait. Never goes back.
class LayerGate {
 public:
  void advance(std::size_t layers);
  void open();  // for good: nobody waits any more
  // Until layers 0 to `layer` are in place, or the gate is open.
  void wait_for(std::size_t layer);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t layers_ = 0;
};

class PackedBlocks {
 public:
  // Throws std::out_of_range for a layer whose blocks leave its memory.
  explicit PackedBlocks(std::vector<LayerMemory> layers);

  std::size_t layers() const { return layers_.size(); }
  std::size_t object_bytes() const { return offsets_.back(); }

  // Throws std::out_of_range for a block that some layer lacks.
  void check(std::span<const std::uint64_t> block_ids) const;

  // Objects into the engine, object by object; `objects` are of object_bytes() each, the blocks are
  // checked. The first crcs.size() objects are summed while they are copied: `good` says whose
  // CRC-32C was as expected (1 for those not summed). One that was not has filled its block, with
  // bytes that nobody may use: one pass over memory instead of two.
  void unpack(std::span<const std::uint64_t> block_ids, std::span<const std::byte* const> objects,
              std::span<const std::uint32_t> crcs, std::span<std::uint8_t> good) const;
  // The same layer by layer; the gate is told of each. `good` is known after the last.
  void unpack_layers(std::span<const std::uint64_t> block_ids,
                     std::span<const std::byte* const> objects, std::span<const std::uint32_t> crcs,
                     std::span<std::uint8_t> good, LayerGate& gate) const;
  // One layer of the engine's blocks into the objects.
  void pack(std::size_t layer, std::span<const std::uint64_t> block_ids,
            std::span<std::byte* const> objects) const;

 private:
  std::vector<LayerMemory> layers_;
  std::vector<std::size_t> offsets_;  // of each layer in an object, and their sum
};

}  // namespace moonpool
