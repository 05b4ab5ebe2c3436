// The bytes of a segment file: superblock | slot table | client rows | tombstones | data.
// Nothing here acts. Every struct is fixed to the byte, because other processes, later versions and
// `adopt` after a kill -9 read them. All integers are little endian; offsets count from the file's
// start except an extent's, which counts from the start of the data area.
//
//   region       written by         order that keeps kill -9 harmless
//   superblock   agent              magic last; a term into the unused record, then the index flips
//   slots        agent              fields first, the word last (a free slot's fields mean nothing)
//   rows         the row's client   lock, clear pins, epoch; the agent clears dead rows under lock
//   tombstones   agent              fields first, `used` last
//   data         a slot's writer    the agent itself writes side pieces (long keys, many extents)
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace moonpool {

inline constexpr char kSegmentMagic[8] = {'M', 'O', 'O', 'N', 'S', 'E', 'G', '\n'};
inline constexpr std::uint32_t kSegmentVersion = 1;
inline constexpr std::uint64_t kGranule = 64;  // extents start and end on it
inline constexpr std::uint32_t kInlineExtents = 3;
inline constexpr std::uint32_t kInlineText = 168;    // bytes of key + parent inside the slot
inline constexpr std::uint32_t kKeyBytesMax = 1024;  // of a key, and of a parent
inline constexpr std::uint32_t kExtentsMax = 4096;   // of one object; more is "no space"
inline constexpr std::uint32_t kPinsPerRow = 248;
inline constexpr std::uint32_t kTrustDomainMax = 256;
inline constexpr std::uint32_t kNoRow = 0xffffffffu;  // the writer is the agent's own process
inline constexpr std::uint64_t kSlotsMax = 1u << 28;
inline constexpr std::uint32_t kRowsMax = 1u << 16;

// Lock bytes lie far beyond any data, so that they never meet a lock somebody takes on the
// contents.
inline constexpr std::uint64_t kOwnerLockByte = 1ull << 61;
inline constexpr std::uint64_t row_lock_byte(std::uint32_t row) { return kOwnerLockByte + 1 + row; }

// The slot word: `generation << 3 | state`. It alone says what the slot's other fields mean.
//   free --claim--> writing --seal--> sealed --retire--> retired --return--> free
//                      |--abort--> free
//                      |--expire--> retired (extents stay until the writer is gone or acknowledged)
// The generation grows by one at every claim and at every retire, and never wraps.
enum class SlotState : std::uint8_t { kFree = 0, kWriting = 1, kSealed = 2, kRetired = 3 };

constexpr std::uint64_t slot_word(std::uint64_t generation, SlotState state) {
  return generation << 3 | static_cast<std::uint64_t>(state);
}
constexpr std::uint64_t word_generation(std::uint64_t word) { return word >> 3; }
constexpr SlotState word_state(std::uint64_t word) { return static_cast<SlotState>(word & 7); }

struct Extent {
  std::uint64_t offset = 0;  // in the data area, a multiple of kGranule
  std::uint64_t bytes = 0;   // a multiple of kGranule
  bool operator==(const Extent&) const = default;
};
static_assert(sizeof(Extent) == 16);

// A side piece holds what does not fit into the slot: all extents of the object, then key and
// parent, as one byte stream over linked pieces. One granule is enough for a piece, so a fragmented
// data area can always hold one.
struct SidePiece {
  std::uint64_t next_offset = 0;  // of the next piece
  std::uint32_t next_bytes = 0;   // 0: this is the last
  std::uint32_t bytes = 0;        // payload bytes after this header
};
static_assert(sizeof(SidePiece) == 16);

struct alignas(64) Slot {
  std::atomic<std::uint64_t> word;
  std::uint64_t term;
  std::uint64_t seq;
  std::uint64_t size;
  std::int64_t expiry_ms;
  std::uint32_t crc;
  std::uint32_t tenant;
  std::uint32_t last_used;
  std::uint32_t writer_row;  // kNoRow: the agent itself
  std::uint64_t writer_epoch;
  std::int64_t hold_until_ns;  // CLOCK_BOOTTIME; extents of a retired slot return not before
  std::uint32_t extent_count;
  std::uint16_t key_bytes;
  std::uint16_t parent_bytes;
  std::uint16_t flags;
  std::uint8_t replicas;
  std::uint8_t pin;
  std::uint32_t writer_open;  // 1 from claim until seal or the writer's acknowledgement
  Extent extents[kInlineExtents];
  Extent side;  // first side piece; bytes 0: none
  std::uint8_t text[kInlineText];
};
static_assert(sizeof(Slot) == 320 && std::is_standard_layout_v<Slot>);
static_assert(offsetof(Slot, size) == 24 && offsetof(Slot, crc) == 40);
static_assert(offsetof(Slot, writer_epoch) == 56 && offsetof(Slot, extent_count) == 72);
static_assert(offsetof(Slot, extents) == 88 && offsetof(Slot, side) == 136);
static_assert(offsetof(Slot, text) == 152);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// One client process. Whoever holds the lock on the row's byte is alive; without it the row says
// nothing.
struct alignas(64) ClientRow {
  std::atomic<std::uint64_t> epoch;  // +1 each time a client takes the row
  std::atomic<std::uint32_t> pid;    // 0: nobody since the agent last cleared it
  std::uint32_t reserved[13];
  std::atomic<std::uint64_t> pins[kPinsPerRow];  // pin_word, 0: empty
};
static_assert(sizeof(ClientRow) == 2048 && offsetof(ClientRow, pins) == 64);

// A hazard pin: the slot (plus one) and, for whoever looks at it, the low half of the generation.
constexpr std::uint64_t pin_word(std::uint32_t slot, std::uint64_t generation) {
  return generation << 32 | (static_cast<std::uint64_t>(slot) + 1);
}
constexpr std::uint32_t pin_slot(std::uint64_t pin) { return static_cast<std::uint32_t>(pin) - 1; }

struct Tombstone {
  std::uint8_t hash[16];
  std::uint64_t term;
  std::uint64_t seq;
  std::atomic<std::uint64_t> used;
};
static_assert(sizeof(Tombstone) == 40);

struct TermRecord {
  std::uint64_t term;
  std::uint8_t instance[16];  // of the master that raised it
};
static_assert(sizeof(TermRecord) == 24);

// Set at formatting and never again; covered by Superblock::geometry_crc.
struct Geometry {
  std::uint32_t version;
  std::uint32_t page_bytes;  // mapping granularity of the file (huge on hugetlbfs)
  std::uint32_t slots;
  std::uint32_t rows;
  std::uint32_t tombstones;
  std::uint32_t trust_domain_bytes;
  std::uint64_t file_bytes;
  std::uint64_t capacity_bytes;  // what the master may commit
  std::uint64_t headroom_bytes;  // for what is in flight, retired or pinned
  std::uint64_t slots_offset;
  std::uint64_t rows_offset;
  std::uint64_t tombstones_offset;
  std::uint64_t data_offset;
  std::uint64_t data_bytes;
  std::uint8_t incarnation[16];
  std::uint8_t trust_domain[kTrustDomainMax];
};
static_assert(sizeof(Geometry) == 360 && std::is_trivially_copyable_v<Geometry>);

struct Superblock {
  char magic[8];
  Geometry geometry;
  std::uint32_t geometry_crc;
  std::uint32_t owner_pid;  // who holds, or last held, the owner lock
  std::atomic<std::uint32_t> term_index;
  std::uint32_t reserved0;
  TermRecord terms[2];
  std::atomic<std::uint64_t> sequence;                    // of the last change
  alignas(64) std::atomic<std::uint64_t> valid_until_ns;  // CLOCK_BOOTTIME, 0: for ever
};
static_assert(offsetof(Superblock, geometry) == 8 && offsetof(Superblock, terms) == 384);
static_assert(offsetof(Superblock, valid_until_ns) == 448 && sizeof(Superblock) <= 4096);

}  // namespace moonpool
