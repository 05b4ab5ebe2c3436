// Builds the submissions of the raw and object calls: shapes and bounds are checked here, once,
// before anything is queued. All throw std::invalid_argument for lists of unequal length or out of
// bounds.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "endpoint.hpp"

namespace moonpool {

// The caller's memory of a raw transfer.
struct RawMemory {
  std::uint8_t* memory;
  std::uint64_t size;
};

Submission read_raw(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                    std::span<const std::uint64_t> remote_offsets,
                    std::span<const std::uint64_t> lengths, RawMemory destination,
                    std::span<const std::uint64_t> offsets, std::int64_t deadline_ms,
                    bool checksum);
Submission write_raw(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                     std::span<const std::uint64_t> remote_offsets,
                     std::span<const std::uint64_t> lengths, RawMemory source,
                     std::span<const std::uint64_t> offsets, std::int64_t deadline_ms,
                     bool checksum);

// One destination of an object read: `length` bytes from `offset`, or the whole object from there.
struct ObjectRead {
  std::uint32_t slot;
  std::uint64_t generation;
  std::uint64_t offset;
  std::uint64_t length;  // wire::kWholeObject: whatever there is, at most the room
  Op::Room room;
};

struct ObjectSource {
  const std::uint8_t* memory;
  std::uint64_t size;
};

// A batch of claims as the agent takes them: 48-byte records, and their keys and parents as one
// blob.
struct ClaimList {
  std::span<const std::uint8_t> records;
  std::span<const std::uint8_t> blob;
  std::uint64_t term;
};

// Rows of sealed objects, see wire::GatherHead. `slots` to `strides` by unit, `counts` by layer;
// the rows go to `room` one after another.
struct RowsWanted {
  std::uint32_t row_bytes;
  std::uint32_t unit_tokens;
  std::span<const std::uint32_t> slots;
  std::span<const std::uint64_t> generations;
  std::span<const std::uint64_t> offsets;
  std::span<const std::uint64_t> strides;
  std::span<const std::uint32_t> layers;
  std::span<const std::uint32_t> counts;
  std::span<const std::uint32_t> positions;
};

Submission gather_rows(Endpoint& endpoint, const wire::Id16& incarnation, const RowsWanted& wanted,
                       Op::Room room, std::int64_t deadline_ms, bool verify);
Submission read_objects(Endpoint& endpoint, const wire::Id16& incarnation,
                        std::span<const ObjectRead> reads, std::int64_t deadline_ms, bool verify);
Submission put_objects(Endpoint& endpoint, const wire::Id16& incarnation, const ClaimList& claims,
                       std::span<const ObjectSource> sources, std::int64_t deadline_ms);
// Row -1: the claims end with the connection.
Submission claim_slots(Endpoint& endpoint, const wire::Id16& incarnation, const ClaimList& claims,
                       std::int32_t row, std::uint64_t row_epoch, std::int64_t deadline_ms);
Submission write_object(Endpoint& endpoint, const wire::Id16& incarnation, std::uint32_t slot,
                        std::uint64_t generation, std::uint64_t offset, ObjectSource source,
                        std::int64_t deadline_ms);
Submission seal_slots(Endpoint& endpoint, const wire::Id16& incarnation,
                      std::span<const std::uint32_t> slots,
                      std::span<const std::uint64_t> generations,
                      std::span<const std::uint32_t> crcs, bool agent_computes, std::uint64_t term,
                      std::int64_t deadline_ms);
Submission abort_slots(Endpoint& endpoint, const wire::Id16& incarnation,
                       std::span<const std::uint32_t> slots,
                       std::span<const std::uint64_t> generations, std::int64_t deadline_ms);
// Once answered, nothing that was sent over `old` is applied at the peer any more.
Submission fence(Endpoint& endpoint, const ClientConnection& old, std::int64_t deadline_ms);
// For the inbox of the peer; `bytes` at most Inbox::kBytesMax.
Submission notify_peer(Endpoint& endpoint, std::span<const std::uint8_t> bytes,
                       std::int64_t deadline_ms);
Submission share_region(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                        std::int64_t deadline_ms);

}  // namespace moonpool
