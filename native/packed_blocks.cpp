#include "packed_blocks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "crc.hpp"

namespace moonpool {
namespace {

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// Whether the last piece of the last block ends inside; written without sums that could wrap.
bool inside(const LayerMemory& layer) {
  if (layer.pieces.empty() || layer.piece_bytes == 0 || layer.count == 0) return false;
  std::uint64_t left = layer.memory.size;
  if (layer.piece_bytes > left) return false;
  left -= layer.piece_bytes;
  const std::uint64_t piece = *std::max_element(layer.pieces.begin(), layer.pieces.end());
  if (piece > left) return false;
  left -= piece;
  return layer.stride == 0 ? layer.count == 1 : layer.count - 1 <= left / layer.stride;
}

void copy_in(const LayerMemory& layer, std::uint64_t block_id, const std::byte* from) {
  std::byte* block = layer.memory.data + block_id * layer.stride;
  for (const std::uint64_t piece : layer.pieces) {
    std::memcpy(block + piece, from, layer.piece_bytes);
    from += layer.piece_bytes;
  }
}

}  // namespace

void LayerGate::advance(std::size_t layers) {
  const std::lock_guard lock(mutex_);
  layers_ = std::max(layers_, layers);
  changed_.notify_all();
}

void LayerGate::open() { advance(kAll); }

void LayerGate::wait_for(std::size_t layer) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return layers_ > layer; });
}

PackedBlocks::PackedBlocks(std::vector<LayerMemory> layers) : layers_(std::move(layers)) {
  offsets_.push_back(0);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!inside(layers_[i])) {
      throw std::out_of_range("layer " + std::to_string(i) + ": its " +
                              std::to_string(layers_[i].count) + " blocks are not inside its " +
                              std::to_string(layers_[i].memory.size) + " bytes");
    }
    offsets_.push_back(offsets_.back() + layers_[i].pieces.size() * layers_[i].piece_bytes);
  }
}

void PackedBlocks::check(std::span<const std::uint64_t> block_ids) const {
  for (const LayerMemory& layer : layers_) {
    for (const std::uint64_t id : block_ids) {
      if (id >= layer.count) {
        throw std::out_of_range("block " + std::to_string(id) + " of a cache of " +
                                std::to_string(layer.count) + " blocks");
      }
    }
  }
}

void PackedBlocks::sums(std::span<const std::byte* const> objects,
                        std::span<std::uint32_t> crcs) const {
  for (std::size_t i = 0; i < objects.size(); ++i) crcs[i] = crc32c(objects[i], object_bytes());
}

void PackedBlocks::unpack(std::span<const std::uint64_t> block_ids,
                          std::span<const std::byte* const> objects,
                          std::span<const std::uint32_t> crcs, std::span<std::uint8_t> good) const {
  for (std::size_t i = 0; i < objects.size(); ++i) {
    good[i] = crcs.empty() || crc32c(objects[i], object_bytes()) == crcs[i];
    for (std::size_t at = 0; good[i] != 0 && at < layers_.size(); ++at) {
      copy_in(layers_[at], block_ids[i], objects[i] + offsets_[at]);
    }
  }
}

void PackedBlocks::unpack_layers(std::span<const std::uint64_t> block_ids,
                                 std::span<const std::byte* const> objects, LayerGate& gate) const {
  for (std::size_t at = 0; at < layers_.size(); ++at) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      copy_in(layers_[at], block_ids[i], objects[i] + offsets_[at]);
    }
    gate.advance(at + 1);
  }
}

void PackedBlocks::pack(std::size_t at, std::span<const std::uint64_t> block_ids,
                        std::span<std::byte* const> objects) const {
  const LayerMemory& layer = layers_.at(at);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    std::byte* to = objects[i] + offsets_[at];
    const std::byte* block = layer.memory.data + block_ids[i] * layer.stride;
    for (const std::uint64_t piece : layer.pieces) {
      std::memcpy(to, block + piece, layer.piece_bytes);
      to += layer.piece_bytes;
    }
  }
}

}  // namespace moonpool
