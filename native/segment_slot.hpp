// Reading a slot: its extents and its text, inline or from side pieces. Used by the agent on its
// own memory and by clients on memory that may change under them, so every number is checked
// against the data area before it is followed, and a client re-checks the slot's word afterwards.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "segment_layout.hpp"

namespace moonpool {

inline constexpr std::uint32_t kSidePiecesMax = 2048;

// One look at a field that another process may be writing.
template <class T>
T peek(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_RELAXED);
}

// Loads before the fence are done before loads after it: the second half of a generation check.
// ThreadSanitizer knows no fences; two mappings of one file are different memory to it anyway.
inline void read_fence() {
#if defined(__SANITIZE_THREAD__)
  __asm__ __volatile__("" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

inline bool extent_valid(const Extent& extent, std::uint64_t data_bytes) {
  return extent.offset % kGranule == 0 && extent.bytes % kGranule == 0 && extent.bytes != 0 &&
         extent.offset <= data_bytes && extent.bytes <= data_bytes - extent.offset;
}

// What stands in the side stream: the extents if they are too many, the text if it is too long.
struct SideContents {
  std::size_t extent_bytes = 0;
  std::size_t text_bytes = 0;
  std::size_t bytes() const { return extent_bytes + text_bytes; }
};

inline SideContents side_contents(std::uint32_t extent_count, std::size_t text_bytes) {
  return {extent_count > kInlineExtents ? extent_count * sizeof(Extent) : 0,
          text_bytes > kInlineText ? text_bytes : 0};
}

// Appends `bytes` bytes of the side stream to `out`, and its pieces to `pieces` when given. False:
// damaged.
inline bool read_side(const Slot& slot, const std::byte* data, std::uint64_t data_bytes,
                      std::size_t bytes, std::vector<std::byte>& out,
                      std::vector<Extent>* pieces = nullptr) {
  Extent at{peek(slot.side.offset), peek(slot.side.bytes)};
  for (std::uint32_t count = 0; at.bytes != 0; ++count) {
    if (count == kSidePiecesMax || !extent_valid(at, data_bytes)) return false;
    SidePiece piece;
    std::memcpy(&piece, data + at.offset, sizeof piece);
    if (piece.bytes > at.bytes - sizeof piece || piece.bytes > bytes - out.size()) return false;
    const std::byte* payload = data + at.offset + sizeof piece;
    out.insert(out.end(), payload, payload + piece.bytes);
    if (pieces != nullptr) pieces->push_back(at);
    at = {piece.next_offset, piece.next_bytes};
  }
  return out.size() == bytes;
}

// Replaces `out` by the extents of the slot; false when they are damaged or do not hold `size`
// bytes.
inline bool read_extents(const Slot& slot, const std::byte* data, std::uint64_t data_bytes,
                         std::uint64_t size, std::vector<Extent>& out) {
  const std::uint32_t count = peek(slot.extent_count);
  out.clear();
  if (count > kExtentsMax) return false;
  if (count <= kInlineExtents) {
    for (std::uint32_t i = 0; i < count; ++i) {
      out.push_back({peek(slot.extents[i].offset), peek(slot.extents[i].bytes)});
    }
  } else {
    const std::size_t text = std::size_t{peek(slot.key_bytes)} + peek(slot.parent_bytes);
    std::vector<std::byte> stream;
    if (!read_side(slot, data, data_bytes, side_contents(count, text).bytes(), stream))
      return false;
    out.resize(count);
    std::memcpy(out.data(), stream.data(), count * sizeof(Extent));
  }
  std::uint64_t total = 0;
  for (const Extent& extent : out) {
    if (!extent_valid(extent, data_bytes)) return false;
    total += extent.bytes;
  }
  return total >= size && total - size < kGranule;
}

// Replaces `out` by key and parent, one after the other; false when damaged.
inline bool read_text(const Slot& slot, const std::byte* data, std::uint64_t data_bytes,
                      std::string& out) {
  const std::size_t bytes = std::size_t{peek(slot.key_bytes)} + peek(slot.parent_bytes);
  out.clear();
  if (bytes <= kInlineText) {
    out.assign(reinterpret_cast<const char*>(slot.text), bytes);
    return true;
  }
  const SideContents side = side_contents(peek(slot.extent_count), bytes);
  std::vector<std::byte> stream;
  if (!read_side(slot, data, data_bytes, side.bytes(), stream)) return false;
  out.assign(reinterpret_cast<const char*>(stream.data()) + side.extent_bytes, bytes);
  return true;
}

// The extents of one object, checked; without allocation for the usual few.
class Layout {
 public:
  bool load(const Slot& slot, const std::byte* data, std::uint64_t data_bytes, std::uint64_t size) {
    const std::uint32_t count = peek(slot.extent_count);
    if (count > kInlineExtents) {
      if (!read_extents(slot, data, data_bytes, size, chained_)) return false;
      extents_ = chained_;
      return true;
    }
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      few_[i] = {peek(slot.extents[i].offset), peek(slot.extents[i].bytes)};
      if (!extent_valid(few_[i], data_bytes)) return false;
      total += few_[i].bytes;
    }
    extents_ = {few_.data(), count};
    return total >= size && total - size < kGranule;
  }

  // Calls visit(pointer, bytes) for each piece of [offset, offset + bytes), in order.
  template <class Visit>
  void pieces(std::byte* data, std::uint64_t offset, std::uint64_t bytes, Visit visit) const {
    for (const Extent& extent : extents_) {
      if (bytes == 0) return;
      if (offset >= extent.bytes) {
        offset -= extent.bytes;
        continue;
      }
      const std::uint64_t take = std::min(extent.bytes - offset, bytes);
      visit(data + extent.offset + offset, take);
      bytes -= take;
      offset = 0;
    }
  }
  std::size_t count() const { return extents_.size(); }
  std::uint64_t offset() const { return extents_.empty() ? 0 : extents_[0].offset; }

 private:
  std::array<Extent, kInlineExtents> few_;
  std::vector<Extent> chained_;
  std::span<const Extent> extents_;
};

}  // namespace moonpool
