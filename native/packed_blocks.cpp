#include "packed_blocks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "copy.hpp"

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

// One layer of an object into its block; the CRC-32C of it, where it is asked for.
class CopyIn {
 public:
  // `bytes` of all that is copied: what the caches cannot hold anyway goes past them.
  CopyIn(std::span<const std::uint32_t> crcs, std::size_t bytes)
      : crcs_(crcs),
        sums_(crcs.size()),
        caching_(bytes >= kLarge ? Caching::kPast : Caching::kKeep) {}

  void operator()(const LayerMemory& layer, std::uint64_t block_id, std::size_t object,
                  const std::byte* from) {
    std::byte* block = layer.memory.data + block_id * layer.stride;
    for (const std::uint64_t piece : layer.pieces) {
      if (object < sums_.size()) {
        sums_[object] =
            copy_crc32c(block + piece, from, layer.piece_bytes, sums_[object], caching_);
      } else {
        std::memcpy(block + piece, from, layer.piece_bytes);
      }
      from += layer.piece_bytes;
    }
  }

  void result(std::span<std::uint8_t> good) const {
    for (std::size_t i = 0; i < good.size(); ++i) {
      good[i] = i >= sums_.size() || sums_[i] == crcs_[i] ? 1 : 0;
    }
  }

 private:
  static constexpr std::size_t kLarge = 16 << 20;

  std::span<const std::uint32_t> crcs_;
  std::vector<std::uint32_t> sums_;
  Caching caching_;
};

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

void PackedBlocks::unpack(std::span<const std::uint64_t> block_ids,
                          std::span<const std::byte* const> objects,
                          std::span<const std::uint32_t> crcs, std::span<std::uint8_t> good) const {
  CopyIn copy(crcs, objects.size() * object_bytes());
  for (std::size_t i = 0; i < objects.size(); ++i) {
    for (std::size_t at = 0; at < layers_.size(); ++at) {
      copy(layers_[at], block_ids[i], i, objects[i] + offsets_[at]);
    }
  }
  copy.result(good);
}

void PackedBlocks::unpack_layers(std::span<const std::uint64_t> block_ids,
                                 std::span<const std::byte* const> objects,
                                 std::span<const std::uint32_t> crcs, std::span<std::uint8_t> good,
                                 LayerGate& gate) const {
  CopyIn copy(crcs, objects.size() * object_bytes());
  for (std::size_t at = 0; at < layers_.size(); ++at) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      copy(layers_[at], block_ids[i], i, objects[i] + offsets_[at]);
    }
    gate.advance(at + 1);
  }
  copy.result(good);
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
