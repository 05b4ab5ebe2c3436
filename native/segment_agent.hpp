// The one owner of a segment: grants, seals, retires and returns its memory, and says what it
// holds. Only this class writes superblock and slot table. Thread-safe by one mutex, which is never
// held while object bytes are copied: whoever moves bytes opens a window, copies without the lock,
// and closes it.
//
//   interval of extents                       who may touch the bytes
//   free                                      nobody (agent: side pieces of a claim under way)
//   claim .. seal or abort                    the writer
//   expire .. writer gone or acknowledged     the writer may still; nobody else gets them
//   seal .. retire                            readers
//   retire .. return (pins, windows, hold)    readers from before (void, unless pinned)
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "extents.hpp"
#include "flat_index.hpp"
#include "segment_file.hpp"
#include "segment_layout.hpp"
#include "status.hpp"

namespace moonpool {

// One claim as it travels (48 bytes, little endian); its key and parent follow in the batch's blob.
struct ClaimRecord {
  std::uint64_t size;
  std::uint64_t term;  // version of the value, not the caller's authority
  std::uint64_t seq;
  std::int64_t expiry_ms;
  std::uint32_t tenant;
  std::uint16_t key_len;
  std::uint16_t parent_len;
  std::uint8_t replicas;
  std::uint8_t pin;
  std::uint16_t flags;
  std::uint32_t last_used;
};
static_assert(sizeof(ClaimRecord) == 48);

struct Claimed {
  Status status = Status::kInternal;
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
};

struct Part {
  std::byte* data;
  std::size_t bytes;
};

// A byte range of one object, laid out in memory. `size` and `crc` are of the whole object.
struct Window {
  Status status = Status::kInternal;
  std::uint32_t crc = 0;
  std::uint64_t size = 0;
  std::vector<Part> parts;
  std::uint32_t tenant = 0;
};

inline constexpr std::uint64_t kWholeObject = ~0ull;  // as a length: all from the offset on
inline constexpr std::uint32_t kSealComputesCrc = 1;  // seal flag: the agent reads the bytes itself
inline constexpr std::size_t kChangesMax = 1 << 16;   // changes remembered
inline constexpr std::uint64_t kInventorySlotsMax = 1 << 20;  // per call; ends stay in 32 bits
inline constexpr std::int64_t kNowNs = -1;                    // "ask the clock" (CLOCK_BOOTTIME)

struct SegmentUsage {
  std::uint64_t free_bytes, largest_free, writing_bytes, sealed_bytes, retired_bytes;
  std::uint64_t free_slots, writing, sealed, retired, pins;
};

// What `adopt` found; a broken slot was freed.
struct Adopted {
  std::uint64_t sealed = 0, writing = 0, retired = 0, freed = 0, broken = 0;
};

enum class ChangeKind : std::uint8_t { kSealed = 1, kRetired = 2, kFreed = 3 };
struct Change {
  std::uint64_t sequence;
  ChangeKind kind;
  std::uint32_t slot;
  std::uint64_t generation, term, seq;
};

// Sealed slots as columns; keys and parents as one blob each with end offsets.
struct Inventory {
  std::vector<std::uint32_t> slot, crc, tenant, last_used, key_ends, parent_ends;
  std::vector<std::uint64_t> generation, term, seq, size;
  std::vector<std::int64_t> expiry_ms;
  std::vector<std::uint8_t> replicas, pin;
  std::string keys, parents;
  std::uint64_t next_start = 0;  // == slots: the end
  std::uint64_t sequence = 0;    // changes after this one may be missing here
};

struct TombstoneEntry {
  std::uint8_t hash[16];
  std::uint64_t term, seq;
};

class SegmentAgent {
 public:
  // Formats a new segment: a named file (0600, in a folder of ours that is closed to others) or a
  // memfd. Throws SegmentError of a kind, std::invalid_argument, std::system_error.
  static std::shared_ptr<SegmentAgent> create(const std::optional<std::string>& path,
                                              const SegmentSpec& spec);
  // Takes over the file of a dead owner and brings it to a consistent state. Throws as `create`.
  static std::shared_ptr<SegmentAgent> adopt(const std::string& path, bool populate = false);
  ~SegmentAgent();
  SegmentAgent(const SegmentAgent&) = delete;
  SegmentAgent& operator=(const SegmentAgent&) = delete;

  // Gives the owner lock back; the file stays. kBusy while windows are open: detach the endpoint
  // first.
  Status close();
  Status destroy();  // close, and unlink the file
  bool closed() const;

  const Geometry& geometry() const { return geometry_; }
  const std::optional<std::string>& path() const { return path_; }
  const Adopted& adopted() const { return adopted_; }
  int fd() const;  // to be handed to a process of the same user; clients open it anew
  std::uint64_t term() const;
  std::uint64_t sequence() const;
  std::uint64_t valid_until_ns() const;
  SegmentUsage usage();

  // Upward only; the same term again only from the same instance. Persisted.
  bool raise_term(std::uint64_t term, std::span<const std::uint8_t, 16> instance);
  void set_valid_until(std::uint64_t boottime_ns);

  // `term` is the caller's authority; older than the segment's gives kStaleTerm. Throws
  // std::invalid_argument when records and blob disagree. Writers of row kNoRow are this process.
  void claim(std::span<const ClaimRecord> records, std::string_view blob, std::uint64_t term,
             std::uint32_t row, std::uint64_t row_epoch, std::span<Claimed> out,
             std::int64_t now_ns = kNowNs);
  // kOk also when the slot is already sealed at this generation with this CRC (a repeated request).
  void seal(std::span<const std::uint32_t> slots, std::span<const std::uint64_t> generations,
            std::span<const std::uint32_t> crcs, std::uint32_t flags, std::uint64_t term,
            std::span<Status> out);
  // The writer's word that it is done with a claim it does not seal; also after an expiry.
  void abort(std::span<const std::uint32_t> slots, std::span<const std::uint64_t> generations,
             std::span<Status> out);
  // By version: what was writing or sealed is retired. Returns how many slots.
  std::uint64_t expire(std::span<const std::uint64_t> terms, std::span<const std::uint64_t> seqs);
  void retire(std::span<const std::uint32_t> slots, std::span<const std::uint64_t> generations,
              std::uint64_t term, std::int64_t hold_ms, std::span<Status> out,
              std::int64_t now_ns = kNowNs);
  // Returns the extents of retired slots that nobody holds any more; the number of slots freed.
  std::uint64_t drain(std::int64_t now_ns = kNowNs);

  Inventory inventory(std::uint64_t start_slot, std::uint64_t slots_max);
  // The same of these slots only; those that are not sealed, or beyond the table, are left out.
  Inventory inventory_of(std::span<const std::uint32_t> slots);
  // Changes after a sequence number, oldest first; nothing at a gap (ask for the whole inventory).
  std::optional<std::vector<Change>> changes(std::uint64_t after_sequence, std::size_t changes_max);

  // kBusy when the table is full. The higher version of one hash stays.
  Status tombstone_add(std::span<const std::uint8_t, 16> hash, std::uint64_t term,
                       std::uint64_t seq);
  bool tombstone_remove(std::span<const std::uint8_t, 16> hash);
  std::vector<TombstoneEntry> tombstones();

  // Windows, for the process that moves the bytes. A window that opened (status kOk) must be closed
  // with the same generation; its extents cannot return before. close_* tells whether the slot was
  // still sealed (writing) at that generation: if not, the bytes prove nothing.
  Window open_read(std::uint32_t slot, std::uint64_t generation, std::uint64_t offset,
                   std::uint64_t length);
  Status close_read(std::uint32_t slot, std::uint64_t generation);
  Window open_write(std::uint32_t slot, std::uint64_t generation, std::uint64_t offset,
                    std::uint64_t length);
  Status close_write(std::uint32_t slot, std::uint64_t generation);
  // Whose slot this is at that generation, or was when it expired just then; nothing for another.
  std::optional<std::uint32_t> tenant_of(std::uint32_t slot, std::uint64_t generation) const;
  // One atomic load, no lock: for a look between two pieces of a long transfer.
  bool still(std::uint32_t slot, std::uint64_t generation, SlotState state) const;

 private:
  SegmentAgent(OwnedFd fd, const Geometry& geometry, std::optional<std::string> path);
  void format();
  void rebuild();
  // The lock under which everything below runs; throws SegmentClosed.
  std::unique_lock<std::mutex> enter() const;
  bool load_slot(std::uint32_t index, std::vector<Extent>& extents,
                 std::vector<Extent>& pieces) const;

  Claimed claim_one(const ClaimRecord& record, std::string_view key, std::string_view parent,
                    std::uint32_t row, std::uint64_t row_epoch);
  bool place(Slot& slot, std::uint64_t size, std::string_view key, std::string_view parent);
  void write_side(const std::vector<Extent>& pieces, std::string_view stream);
  Status seal_one(std::uint32_t index, std::uint64_t generation, std::optional<std::uint32_t> crc);
  Status abort_one(std::uint32_t index, std::uint64_t generation);

  void set_word(std::uint32_t index, std::uint64_t word);
  void close_writer(Slot& slot);
  void retire_slot(std::uint32_t index, std::int64_t hold_until_ns);
  void free_slot(std::uint32_t index);
  void note(ChangeKind kind, std::uint32_t index);

  std::uint64_t drain_locked(std::int64_t now_ns);
  bool row_alive(std::uint32_t row, std::uint64_t epoch) const;
  bool writer_alive(const Slot& slot) const;
  std::uint64_t reap_rows();
  std::uint64_t free_dead_writes(std::uint32_t row);
  void collect_pins(std::vector<std::uint32_t>& pinned) const;

  Window window(std::uint32_t index, std::uint64_t generation, SlotState state,
                std::uint64_t offset, std::uint64_t length);
  Status close_window(std::uint32_t index, std::uint64_t generation, SlotState state);

  OwnedFd fd_;
  Geometry geometry_;
  std::optional<std::string> path_;
  std::uint64_t process_;
  Mapping map_;
  Superblock* superblock_ = nullptr;
  Slot* slots_ = nullptr;
  ClientRow* rows_ = nullptr;
  Tombstone* tombstones_ = nullptr;
  std::byte* data_ = nullptr;

  mutable std::mutex mutex_;
  bool closed_ = false;
  ExtentAllocator allocator_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<std::uint32_t> retired_;
  std::vector<std::uint32_t> windows_;     // open windows per slot
  std::vector<std::uint32_t> row_writes_;  // slots per client row whose writer is not done
  std::vector<std::uint64_t> row_epochs_;  // the one epoch all of those claims came from
  std::uint64_t windows_open_ = 0;
  FlatIndex versions_;  // hash of a version -> slot, for every slot that is not free
  std::deque<Change> changes_;
  std::uint64_t changes_from_ = 0;  // changes after this sequence number are all in the ring
  std::uint64_t counts_[4] = {};
  std::uint64_t bytes_[4] = {};
  Adopted adopted_;
};

}  // namespace moonpool
