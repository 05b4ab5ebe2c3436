// What became of one block or one claim: the same byte in C++, on the wire and in numpy results.
#pragma once
#include <cstdint>

namespace moonpool {

enum class Status : std::uint8_t {
  kOk = 0,
  kMoved = 1,        // the slot's generation or state is another one: look again
  kCorrupt = 2,      // CRC-32C of the destination differs from the stored one
  kBounds = 3,       // outside the object, the region or the caller's buffer
  kNoSpace = 4,      // no extents left (a full pool is a normal state)
  kNoSlot = 5,       // no slot left
  kStaleTerm = 6,    // the caller speaks for an older term than the segment's
  kExpired = 7,      // a deadline or the segment's valid_until has passed
  kUnreachable = 8,  // the connection or the peer is gone
  kRefused = 9,      // token, trust domain or permission
  kCancelled = 10,   // cancelled by the caller
  kNotFound = 11,    // unknown segment, region or slot
  kTooBig = 12,      // over a limit that has a name
  kBusy = 13,        // a bound was reached; try again
  kProtocol = 14,    // a frame that breaks the protocol
  kInternal = 15,
};

}  // namespace moonpool
