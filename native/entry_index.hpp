// Hash -> number of an entry that has it, in four bytes a place: both indexes of the prefix table.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "prefetch.hpp"

namespace moonpool {

// Sixteen words side by side: bit i of the mask says whether (words[i] & keep) == wanted.
inline std::uint32_t mask_of_equal(const std::uint32_t* words, std::uint32_t keep,
                                   std::uint32_t wanted) {
#ifdef __SSE2__
  const __m128i kept = _mm_set1_epi32(static_cast<int>(keep));
  const __m128i same = _mm_set1_epi32(static_cast<int>(wanted));
  const auto four = [&](int i) {
    const auto* const at = reinterpret_cast<const __m128i*>(words) + i;
    return _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(at), kept), same);
  };
  const __m128i halves[2] = {_mm_packs_epi32(four(0), four(1)), _mm_packs_epi32(four(2), four(3))};
  return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(halves[0], halves[1])));
#else
  std::uint32_t mask = 0;
  for (std::uint32_t i = 0; i < 16; i++) {
    mask |= static_cast<std::uint32_t>((words[i] & keep) == wanted) << i;
  }
  return mask;
#endif
}

// Open addressing over entry numbers: 26 bits of number, 6 of the hash, so that a wrong candidate
// seldom costs a look at its entry. Sixteen cells make a bucket, one cache line that is compared at
// once; a bucket without an empty cell is followed by the next one. Such a bucket never gets an
// empty cell again before a rebuild, only gone ones: what lies after it stays in reach.
class EntryIndex {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr std::uint32_t kNumberBits = 26;
  static constexpr std::uint32_t kNumbersMax = (1u << kNumberBits) - 2;

  // `same(number)` says whether the entry is the wanted one.
  template <class Same>
  std::uint32_t find(std::uint64_t hash, Same same) const {
    if (used_ == 0) return kNone;
    const std::uint64_t mixed = spread(hash);
    for (std::size_t b = home(mixed);; b = next(b)) {
      const std::uint32_t found = find_in(buckets_[b], tag_of(mixed), same);
      if (found != kNone || buckets_[b].mask(~0u, kNone) != 0) return found;
    }
  }
  // The same; when it is not there, `cell` is where insert_at() would put it, as long as nothing
  // else changes and there is room.
  template <class Same>
  std::uint32_t find(std::uint64_t hash, Same same, std::size_t& cell) const {
    if (buckets_.empty()) return kNone;
    const std::uint64_t mixed = spread(hash);
    bool gone = false;
    for (std::size_t b = home(mixed);; b = next(b)) {
      const std::uint32_t found = find_in(buckets_[b], tag_of(mixed), same);
      if (found != kNone) return found;
      const std::uint32_t free = used_ == live_ ? 0 : buckets_[b].mask(kFreeBits, kGone);
      const std::uint32_t empty = buckets_[b].mask(~0u, kNone);
      if (!gone && (free | empty) != 0) cell = cell_in(b, free | empty);
      if (empty != 0) return kNone;
      gone |= free != 0;
    }
  }
  // The entry must not be there; room must have been made.
  void insert(std::uint64_t hash, std::uint32_t number);
  void insert_at(std::size_t cell, std::uint64_t hash, std::uint32_t number) {
    std::uint32_t& at = buckets_[cell / kBucket].cells[cell % kBucket];
    if (at == kNone) used_++;
    at = tag_of(spread(hash)) | number;
    live_++;
  }
  void erase(std::uint64_t hash, std::uint32_t number);

  bool full() const { return (used_ + 1) * 5 > cells() * 4; }  // of live and gone ones
  bool sparse() const { return live_ * 10 <= cells() * 7; }    // a rebuild gives room
  std::size_t cells() const { return buckets_.size() * kBucket; }
  std::size_t wanted_cells() const;  // how many a rebuild should have, for one entry more
  void reset(std::size_t cells);     // empty; then insert all again

  // Asks for the memory that a find of `hash` will look at.
  void ask(std::uint64_t hash) const {
    if (used_ != 0) ask_cell(hash);
  }
  // The same where there are cells: for an insert.
  void ask_cell(std::uint64_t hash) const { prefetch(buckets_.data() + home(spread(hash))); }
  // The first entry that a find would look at, or kNone.
  std::uint32_t likely(std::uint64_t hash) const {
    if (used_ == 0) return kNone;
    const std::uint64_t mixed = spread(hash);
    return find_in(buckets_[home(mixed)], tag_of(mixed), [](std::uint32_t) { return true; });
  }
  std::size_t memory_bytes() const { return buckets_.capacity() * sizeof(Bucket); }

 private:
  static constexpr std::uint32_t kGone = 0xfffffffe;
  static constexpr std::uint32_t kFreeBits = ~1u;  // all that kGone and kNone have in common
  static constexpr std::uint32_t kNumberMask = (1u << kNumberBits) - 1;
  static constexpr std::size_t kBucket = 16;

  struct alignas(64) Bucket {
    std::uint32_t cells[kBucket];

    std::uint32_t mask(std::uint32_t keep, std::uint32_t wanted) const {
      return mask_of_equal(cells, keep, wanted);
    }
  };

  template <class Same>
  static std::uint32_t find_in(const Bucket& bucket, std::uint32_t tag, Same same) {
    for (std::uint32_t rest = bucket.mask(~kNumberMask, tag); rest != 0; rest &= rest - 1) {
      const std::uint32_t cell = bucket.cells[std::countr_zero(rest)];
      if (cell < kGone && same(cell & kNumberMask)) return cell & kNumberMask;
    }
    return kNone;
  }
  static std::size_t cell_in(std::size_t bucket, std::uint32_t mask) {
    return bucket * kBucket + static_cast<std::size_t>(std::countr_zero(mask));
  }
  // Hashes given from outside may be anything.
  static std::uint64_t spread(std::uint64_t hash) { return hash * 0x9e3779b97f4a7c15; }
  static std::uint32_t tag_of(std::uint64_t mixed) {
    return static_cast<std::uint32_t>(mixed) & ~kNumberMask;
  }
  std::size_t home(std::uint64_t mixed) const { return (mixed >> 32) * buckets_.size() >> 32; }
  std::size_t next(std::size_t bucket) const {
    return bucket + 1 == buckets_.size() ? 0 : bucket + 1;
  }

  std::vector<Bucket> buckets_;
  std::size_t used_ = 0;  // cells that are not empty, gone ones included
  std::size_t live_ = 0;
};

}  // namespace moonpool
