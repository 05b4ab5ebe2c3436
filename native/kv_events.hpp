// KV events as engines publish them, applied to the index: vLLM's maps and the positional arrays
// that it sent before and SGLang sends, and Moonpool's own, which carry own hashes.
//
// Two events are Moonpool's alone: CacheDigest, a worker's own account of what it holds, and
// RangesCleared, after which it names anew what it holds in some ranges.
//
// A batch is [time, events, rank?]. One event that does not fit is counted and passed over; a
// message that is none throws BadMessage.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine_feed.hpp"
#include "msgpack.hpp"

namespace moonpool {

struct EventSource {
  std::span<const std::uint32_t> places;  // by data-parallel rank
  std::uint64_t model_seed = 0;
  std::uint32_t block_size = 0;     // tokens; 0: taken from the first event
  std::uint64_t walks_max = ~0ull;  // accounts and cleared ranges, which look at the whole index
};

struct EventCounts {
  std::uint64_t events = 0;
  std::uint64_t stored = 0;    // blocks
  std::uint64_t removed = 0;   // blocks that were held
  std::uint64_t unknown = 0;   // removed or moved, and not held
  std::uint64_t orphaned = 0;  // blocks that wait for their parent
  std::uint64_t cleared = 0;
  std::uint64_t ignored = 0;     // events of groups that are no prefix, of unknown types, or
                                 // accounts and cleared ranges above walks_max
  std::uint64_t malformed = 0;   // events
  std::uint64_t mismatched = 0;  // events of another block size
  std::uint64_t block_size = 0;  // that of the last stored event
  std::uint64_t groups = 0;      // bits of the KV groups that stored something
  std::uint64_t renewals = 0;    // events of ranges that are told anew
  std::uint64_t renewed = 0;     // blocks removed for it
  std::uint64_t walks = 0;       // accounts and cleared ranges, those above walks_max included
};

// A worker's own account of one slot: the ranges in which the index has something else.
struct Account {
  std::uint32_t place;
  std::uint32_t slot;
  RangeMarks differ;
};

class EventReader {
 public:
  EventReader(PrefixIndex& index, EngineFeed& feed) : index_(index), feed_(feed) {}

  // Applies one message. What became of accounts in it is left in `accounts`.
  EventCounts apply(std::string_view message, const EventSource& source,
                    std::vector<Account>& accounts);

 private:
  struct Fields;

  void apply_event(MsgpackReader& in, const EventSource& source, std::uint32_t place,
                   EventCounts& counts, std::vector<Account>& accounts);
  std::uint32_t field_named(std::string_view name, std::uint32_t at);
  void take(MsgpackReader& in, Fields& fields, std::uint32_t field);
  void stored(const Fields& fields, const EventSource& source, std::uint32_t place,
              EventCounts& counts);
  void removed(const Fields& fields, const EventSource& source, std::uint32_t place,
               EventCounts& counts);
  void compare(const Fields& fields, const EventSource& source, std::uint32_t place,
               std::vector<Account>& accounts);
  void clear_ranges(const Fields& fields, const EventSource& source, std::uint32_t place,
                    EventCounts& counts);
  void read_keys(std::string_view list, std::uint64_t domain);
  std::uint64_t root_seed(const Fields& fields, const EventSource& source) const;
  void mix_extras(const Fields& fields);

  PrefixIndex& index_;
  EngineFeed& feed_;
  std::vector<std::uint64_t> keys_, contents_;
  std::vector<std::uint32_t> tokens_;  // of the last list of ids that was met
  bool tokens_whole_ = false;
  std::array<std::uint8_t, 16> before_{};  // the field at each place of the last maps
};

}  // namespace moonpool
