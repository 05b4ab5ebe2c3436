// The data plane's wire format: fixed little-endian structs, the same on both ends and in golden
// tests.
//
// A frame is header | meta | padding | payload | trailer. The padding makes a payload begin at a
// cache line of the stream: the kernel copies it half as fast from and to other places. The meta
// holds the block descriptors, the payload the bytes of all blocks back to back, the trailer what
// can only be known after the payload. A receiver checks every length against its limits before it
// allocates, and believes no block before the trailer.
//
//   request       meta                                 payload   trailer
//   kReadRaw      RawBlock[count]                      -         -
//   kWriteRaw     RawBlock[count]                      blocks    u32 crc[count], u32 crc of these
//   kReadObjects  ObjectBlock[count]                   -         -
//   kPutObjects   Writer, record[count] (48 B), keys   objects   u32 crc[count], u32 crc of these
//   kClaim        Writer, record[count] (48 B), keys   -         -
//   kSeal         SlotBlock[count]                     -         -
//   kAbort        SlotBlock[count]                     -         -
//   kWriteObject  ObjectBlock[count]                   blocks    u32 crc[count], u32 crc of these
//   kGatherRows   GatherHead, GatherUnit[units], GatherLayer[count], u32 position[positions]
//   kNotify       what it says, at most Inbox::kBytesMax
//   kPing, kDirectory, kShareRegion: header only
//
//   reply (type | kReplyBit): meta = u64 length[count] for reads, the directory for kDirectory,
//   else nothing; payload = the blocks of a read; trailer = ReplyRecord[count], TrailerEnd.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "crc.hpp"

namespace moonpool::wire {

static_assert(std::endian::native == std::endian::little, "the wire is little endian");

inline constexpr std::uint32_t kMagic = 0x4c4f504d;  // the bytes "MPOL"
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::uint8_t kReplyBit = 0x80;
inline constexpr std::uint32_t kAlignment = 64;
inline constexpr std::uint64_t kWholeObject = ~std::uint64_t{0};

enum class Type : std::uint8_t {
  kHello = 1,      // client -> server: Hello
  kChallenge = 2,  // server -> client: Hello
  kProof = 3,      // client -> server: 32 bytes of HMAC
  kWelcome = 4,    // server -> client: 32 bytes of HMAC, directory
  kRefused = 5,    // server -> client: a text; the connection closes
  kPing = 16,
  kReadRaw = 17,
  kWriteRaw = 18,
  kReadObjects = 19,
  kPutObjects = 20,
  kClaim = 21,
  kSeal = 22,
  kAbort = 23,
  kWriteObject = 24,
  kDirectory = 25,
  kShareRegion = 26,
  kFence = 27,  // ends another connection of the asking client, named by its hello's nonce
  kGatherRows = 28,
  kNotify = 29,
};

// Header flags. A sender sets no others; a receiver refuses what it does not know.
inline constexpr std::uint16_t kFlagChecksum = 1;  // CRCs are sent (writes) or wanted (reads)
inline constexpr std::uint16_t kFlagAgentCrc = 2;  // kSeal: the agent computes the CRC itself
// The asker waits for nothing else, and has for some time: the server may come to its CPU.
inline constexpr std::uint16_t kFlagWaited = 4;
inline constexpr std::uint16_t kFlagsKnown = 7;

using Id16 = std::array<std::uint8_t, 16>;

struct Header {
  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t type = 0;
  std::uint16_t flags = 0;
  std::uint64_t request_id = 0;
  std::uint32_t count = 0;             // blocks
  std::uint32_t deadline_left_ms = 0;  // requests: time the caller still waits
  std::uint64_t payload_bytes = 0;
  Id16 target{};  // segment incarnation, or region id (u64) and the owner's epoch (u64)
  std::uint64_t term = 0;
  std::uint32_t meta_bytes = 0;
  std::uint32_t meta_crc = 0;
  std::uint32_t padding = 0;     // bytes between meta and payload, less than kAlignment
  std::uint32_t header_crc = 0;  // CRC-32C of the bytes before it
};
static_assert(sizeof(Header) == 72 && offsetof(Header, header_crc) == 68);
static_assert(offsetof(Header, payload_bytes) == 24 && offsetof(Header, target) == 32);

struct Hello {
  std::uint64_t epoch = 0;
  Id16 nonce{};
};
static_assert(sizeof(Hello) == 24);

struct RawBlock {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
static_assert(sizeof(RawBlock) == 16);

struct ObjectBlock {
  std::uint32_t slot = 0;
  std::uint32_t whole = 0;  // 1: the whole object, `length` is the room at the receiver
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
static_assert(sizeof(ObjectBlock) == 32);

struct SlotBlock {
  std::uint32_t slot = 0;
  std::uint32_t crc = 0;
  std::uint64_t generation = 0;
};
static_assert(sizeof(SlotBlock) == 16);

// Whose claim it is: a row of the segment for shared-memory writers, -1 for the connection itself.
struct Writer {
  std::int32_t row = -1;
  std::uint32_t reserved = 0;
  std::uint64_t row_epoch = 0;
};
static_assert(sizeof(Writer) == 16);

// Rows out of objects: unit u holds tokens u * unit_tokens up to the next unit's, layer by layer.
struct GatherHead {
  std::uint32_t row_bytes = 0;
  std::uint32_t unit_tokens = 0;
  std::uint32_t units = 0;
  std::uint32_t positions = 0;  // of all layers
};
static_assert(sizeof(GatherHead) == 16);

struct GatherUnit {
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;  // of layer 0, row 0 in the object
  std::uint64_t layer_stride = 0;
};
static_assert(sizeof(GatherUnit) == 32);

// One block of the reply: the next `count` positions, rows of this layer.
struct GatherLayer {
  std::uint32_t layer = 0;
  std::uint32_t count = 0;
};
static_assert(sizeof(GatherLayer) == 8);

inline constexpr std::size_t kClaimRecordBytes = 48;

struct ReplyRecord {
  std::uint8_t status = 0;
  std::uint8_t reserved[3] = {};
  std::uint32_t crc = 0;
  std::uint64_t size = 0;        // reads: bytes of the object or range
  std::uint64_t generation = 0;  // claims and puts
  std::uint32_t slot = 0;
  std::uint32_t reserved2 = 0;
};
static_assert(sizeof(ReplyRecord) == 32);

struct TrailerEnd {
  std::uint32_t crc = 0;  // CRC-32C of the records
  std::uint32_t magic = kMagic;
};
static_assert(sizeof(TrailerEnd) == 8);

inline constexpr bool has_request_payload(Type type) {
  return type == Type::kWriteRaw || type == Type::kPutObjects || type == Type::kWriteObject;
}

inline constexpr bool has_reply_payload(Type type) {
  return type == Type::kReadRaw || type == Type::kReadObjects || type == Type::kGatherRows;
}

inline std::size_t request_trailer_bytes(const Header& header) {
  return has_request_payload(Type{header.type}) ? (std::size_t{header.count} + 1) * 4 : 0;
}

inline std::size_t reply_trailer_bytes(const Header& header) {
  return std::size_t{header.count} * sizeof(ReplyRecord) + sizeof(TrailerEnd);
}

// Fills in the CRCs; the last thing done to a header before it leaves.
inline void sign(Header& header, const void* meta, std::size_t meta_bytes) {
  header.meta_bytes = static_cast<std::uint32_t>(meta_bytes);
  header.meta_crc = crc32c(meta, meta_bytes);
  header.header_crc = crc32c(&header, offsetof(Header, header_crc));
}

inline bool signature_ok(const Header& header) {
  return header.header_crc == crc32c(&header, offsetof(Header, header_crc));
}

inline Id16 region_target(std::uint64_t region, std::uint64_t epoch) {
  Id16 target;
  std::memcpy(target.data(), &region, 8);
  std::memcpy(target.data() + 8, &epoch, 8);
  return target;
}

// Reads a trivially copyable struct at any alignment.
template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace moonpool::wire
