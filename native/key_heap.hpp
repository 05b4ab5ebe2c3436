// The bytes of all keys, written one after another into slabs. Erased keys leave holes; when the
// holes are a third of the heap, the emptiest slab is copied out and returned, so that churn never
// makes the heap grow.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace moonpool {

constexpr std::size_t kKeyBytesMax = 1024;

class KeyHeap {
 public:
  // Where a key lies, in units of 8 bytes; 0 is nowhere.
  using At = std::uint32_t;

  // Room for at most 32 GiB. Throws TableFull beyond.
  At append(std::int32_t row, std::string_view key);
  void erase(At at);

  std::string_view key(At at) const {
    const std::byte* block = find(at);
    return {reinterpret_cast<const char*>(block) + kHeaderBytes, header(block).length};
  }
  std::int32_t row(At at) const { return header(find(at)).row; }
  void prefetch(At at) const {
    const std::byte* block = find(at);
    __builtin_prefetch(block);
    __builtin_prefetch(block + 64);
  }

  // When holes take too much: moves the live keys of one slab and calls moved(row, key, from, to).
  template <class Moved>
  void compact(Moved moved) {
    if (bytes() <= live_bytes_ + live_bytes_ / 2 + 2 * kSlabBytes) return;
    const std::size_t victim = emptiest();
    if (victim == open_ || (free_slabs_.empty() && slabs_.size() == kSlabsMax)) return;
    for (std::size_t offset = first_offset(victim); offset < slabs_[victim].used;) {
      const At from = at_of(victim, offset);
      const Header head = header(find(from));
      if (head.row != kDead) {
        const std::string_view key_moved = key(from);
        moved(head.row, key_moved, from, append(head.row, key_moved));
        kill(from);
      }
      offset += block_bytes(head.length);
    }
    release(victim);
  }

  // Memory held, holes included.
  std::size_t bytes() const { return held_ * kSlabBytes; }

 private:
  static constexpr std::size_t kSlabBytes = std::size_t{256} << 10;
  static constexpr std::size_t kUnit = 8;
  static constexpr std::size_t kUnitsPerSlab = kSlabBytes / kUnit;
  static constexpr std::size_t kSlabsMax = (std::size_t{1} << 32) / kUnitsPerSlab;
  static constexpr std::size_t kHeaderBytes = 6;  // row u32, length u16, then the key
  static constexpr std::int32_t kDead = -1;

  struct Header {
    std::int32_t row;
    std::uint16_t length;
  };
  struct Slab {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t used = 0;
    std::size_t live = 0;
  };

  static std::size_t block_bytes(std::size_t length) {
    return (kHeaderBytes + length + kUnit - 1) / kUnit * kUnit;
  }
  static Header header(const std::byte* block) {
    Header head{};
    std::memcpy(&head.row, block, 4);
    std::memcpy(&head.length, block + 4, 2);
    return head;
  }
  // The first unit of the first slab stays empty, so that no key lies at 0.
  static std::size_t first_offset(std::size_t slab) { return slab == 0 ? kUnit : 0; }
  static At at_of(std::size_t slab, std::size_t offset) {
    return static_cast<At>(slab * kUnitsPerSlab + offset / kUnit);
  }
  const std::byte* find(At at) const {
    return slabs_[at / kUnitsPerSlab].bytes.get() + at % kUnitsPerSlab * kUnit;
  }

  void kill(At at);
  void open_slab();
  void release(std::size_t slab);
  std::size_t emptiest() const;

  std::vector<Slab> slabs_;
  std::vector<std::size_t> free_slabs_;  // numbers of slabs without memory
  std::size_t open_ = SIZE_MAX;          // the slab that takes new keys
  std::size_t held_ = 0;
  std::size_t live_bytes_ = 0;
};

}  // namespace moonpool
