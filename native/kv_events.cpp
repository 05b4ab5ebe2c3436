#include "kv_events.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "block_hash.hpp"

namespace moonpool {
namespace {

enum Field : std::uint32_t {
  kBlockHashes,
  kParent,
  kTokenIds,
  kBlockSize,
  kLoraId,
  kMedium,
  kLoraName,
  kExtraKeys,
  kGroup,
  kSpecKind,
  kSalt,
  kOwnHashes,  // Moonpool's: little-endian u64, back to back
  kCounts,
  kDigests,
  kRanges,
  kType,
  kFields,
};

constexpr std::array<std::string_view, kFields> kNames{"block_hashes", "parent_block_hash",
                                                       "token_ids",    "block_size",
                                                       "lora_id",      "medium",
                                                       "lora_name",    "extra_keys",
                                                       "group_idx",    "kv_cache_spec_kind",
                                                       "cache_salt",   "hashes",
                                                       "counts",       "digests",
                                                       "ranges",       "type"};
// The order of fields in an array, after its type.
constexpr Field kStoredOrder[] = {kBlockHashes, kParent,   kTokenIds,  kBlockSize, kLoraId,
                                  kMedium,      kLoraName, kExtraKeys, kGroup,     kSpecKind};
constexpr Field kRemovedOrder[] = {kBlockHashes, kMedium, kGroup};

std::uint32_t slot_of(std::string_view medium) {
  if (medium.empty() || medium == "GPU") return kDevice;
  if (medium.starts_with("CPU") || medium == "HOST") return kHost;
  return kDisk;  // DISK, STORAGE, EXTERNAL and what is still to come: the slowest
}

// Only groups that keep all tokens make a prefix.
bool is_prefix(std::string_view kind) {
  return kind.empty() || kind.find("full") != kind.npos || kind.find("mla") != kind.npos ||
         kind.find("sink") != kind.npos;
}

// Hashes are integers, or 32 bytes of which the last eight are that integer.
std::uint64_t read_key(MsgpackReader& in, std::uint64_t domain) {
  std::uint64_t key;
  if (in.take_u64(key)) return key ^ domain;
  if (in.is_integer()) return in.integer() ^ domain;
  const std::string_view bytes = in.text();
  if (bytes.size() < 8) throw BadMessage("a hash of less than 8 bytes");
  std::memcpy(&key, bytes.data() + bytes.size() - 8, 8);
  return __builtin_bswap64(key) ^ domain;
}

// Hashes of different models never meet: engines do not put the model's name into them.
std::uint64_t domain_of(const EventSource& source, std::uint64_t group) {
  return group_seed(mix64(source.model_seed ^ 0x656e67696e65), group);
}

std::uint64_t hash_bytes(std::string_view bytes) {
  std::uint64_t hash = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    hash = mix64(hash ^ word);
  }
  return hash;
}

}  // namespace

// The encoded values of one event's fields, empty where absent or nil.
struct EventReader::Fields {
  std::array<std::string_view, kFields> values{};

  bool has(Field field) const { return !values[field].empty(); }
  MsgpackReader reader(Field field) const { return MsgpackReader(values[field]); }
  std::string_view text(Field field) const { return has(field) ? reader(field).text() : ""; }
  std::uint64_t integer(Field field, std::uint64_t otherwise) const {
    return has(field) ? reader(field).integer() : otherwise;
  }
  void take(MsgpackReader& in, Field field) {
    const MsgpackReader begin = in;
    if (in.take_nil()) return;
    in.skip();
    values[field] = begin.until(in);
  }
};

EventCounts EventReader::apply(std::string_view message, const EventSource& source,
                               std::vector<Account>& accounts) {
  EventCounts counts;
  counts.block_size = source.block_size;
  MsgpackReader in(message);
  const std::uint32_t parts = in.array();
  if (parts < 2) throw BadMessage("a batch of " + std::to_string(parts) + " parts");
  in.skip();  // its time
  std::uint64_t rank = 0;
  if (source.places.size() > 1 && parts > 2) {  // a worker of one rank has it under any number
    MsgpackReader after = in;
    after.skip();
    if (!after.take_nil()) rank = after.integer();
    if (rank >= source.places.size()) {
      throw BadMessage("rank " + std::to_string(rank) + " of a worker with " +
                       std::to_string(source.places.size()));
    }
  }
  try {
    for (std::uint32_t rest = in.array(); rest > 0; rest--) {
      counts.events++;
      const MsgpackReader begin = in;
      try {
        apply_event(in, source, source.places[rank], counts, accounts);
      } catch (const BadMessage&) {
        counts.malformed++;
        in = begin;  // whatever is wrong inside, the next one begins after it
        in.skip();
      }
    }
  } catch (const BadMessage&) {
    feed_.settle();  // what came before the end counts
    throw;
  }
  feed_.settle();
  return counts;
}

void EventReader::apply_event(MsgpackReader& in, const EventSource& source, std::uint32_t place,
                              EventCounts& counts, std::vector<Account>& accounts) {
  Fields fields;
  std::string_view type;
  if (in.is_map()) {
    const std::uint32_t size = in.map();
    for (std::uint32_t i = 0; i < size; i++) {
      const std::uint32_t field = field_named(in.text(), i);
      if (field == kType) {
        type = in.text();
      } else if (field < kFields) {
        take(in, fields, field);
      } else {
        in.skip();
      }
    }
  } else {
    const std::uint32_t size = in.array();
    if (size == 0) throw BadMessage("an empty event");
    type = in.text();
    const std::span<const Field> order =
        type == "BlockRemoved" ? std::span<const Field>(kRemovedOrder) : kStoredOrder;
    for (std::uint32_t i = 0; i + 1 < size; i++) {
      if (i < order.size()) {
        take(in, fields, order[i]);
      } else {
        in.skip();
      }
    }
  }
  if (type == "BlockStored") return stored(fields, source, place, counts);
  feed_.settle();
  if (type == "BlockRemoved") return removed(fields, source, place, counts);
  if (type == "AllBlocksCleared") {
    index_.drop_place(place);
    feed_.forget(place);
    counts.cleared++;
  } else if (type != "CacheDigest" && type != "RangesCleared") {
    counts.ignored++;
  } else if (++counts.walks > source.walks_max) {
    counts.ignored++;
  } else if (type == "CacheDigest") {
    compare(fields, source, place, accounts);
  } else {
    clear_ranges(fields, source, place, counts);
  }
}

// The field of that name, the `at`-th of its map; kFields: none that is known. An engine's maps
// have their fields in one order, so the name is mostly the one that stood there before.
std::uint32_t EventReader::field_named(std::string_view name, std::uint32_t at) {
  std::uint8_t& before = before_[at % before_.size()];
  if (name == kNames[before]) return before;
  const auto* const known = std::find(kNames.begin(), kNames.end(), name);
  if (known == kNames.end()) return kFields;
  return before = static_cast<std::uint8_t>(known - kNames.begin());
}

// Token ids are most of a message: they are read where they are met, not passed over first. A list
// that is none is told when it is needed.
void EventReader::take(MsgpackReader& in, Fields& fields, std::uint32_t field) {
  if (field != kTokenIds || !in.is_array()) return fields.take(in, static_cast<Field>(field));
  const MsgpackReader begin = in;
  tokens_whole_ = false;
  try {
    tokens_.resize(in.array());
    in.tokens(tokens_.data(), static_cast<std::uint32_t>(tokens_.size()));
    tokens_whole_ = true;
    fields.values[field] = begin.until(in);
  } catch (const BadMessage&) {
    in = begin;
    fields.take(in, kTokenIds);
  }
}

void EventReader::stored(const Fields& fields, const EventSource& source, std::uint32_t place,
                         EventCounts& counts) {
  const std::uint32_t slot = slot_of(fields.text(kMedium));
  const std::uint64_t size = fields.integer(kBlockSize, 0);
  if (size != 0) {
    if (size > 1 << 20) throw BadMessage("a block of more than 2^20 tokens");
    if (source.block_size == 0 && counts.block_size == 0) counts.block_size = size;
    if (size != counts.block_size) {
      counts.mismatched++;
      return;
    }
  }
  if (fields.has(kOwnHashes)) {
    const std::string_view raw = fields.text(kOwnHashes);
    if (raw.size() % 8 != 0) throw BadMessage("hashes of 8 bytes each");
    keys_.resize(raw.size() / 8);
    std::memcpy(keys_.data(), raw.data(), raw.size());
    feed_.settle();
    index_.store(place, slot, keys_, fields.integer(kParent, 0));
    counts.stored += keys_.size();
    counts.groups |= 1;
    return;
  }
  const std::uint64_t group = fields.integer(kGroup, 0);
  if (!is_prefix(fields.text(kSpecKind)) || group >= 64) {
    counts.ignored++;
    return;
  }
  const std::uint64_t domain = domain_of(source, group);
  read_keys(fields.values[kBlockHashes], domain);
  std::uint64_t parent = 0;
  if (fields.has(kParent)) {
    MsgpackReader in = fields.reader(kParent);
    parent = read_key(in, domain);
  }
  const std::uint32_t token_count = fields.has(kTokenIds) ? fields.reader(kTokenIds).array() : 0;
  if (token_count == 0) {  // a tier's word about blocks that are known
    counts.unknown += feed_.move(place, slot, keys_);
    counts.stored += keys_.size();
    return;
  }
  if (size == 0 || token_count != size * keys_.size()) {
    throw BadMessage("tokens that do not fill the blocks");
  }
  if (!tokens_whole_) throw BadMessage("token ids of another kind");
  contents_.resize(keys_.size());
  for (std::size_t i = 0; i < keys_.size(); i++) {
    contents_[i] = block_content(std::span(tokens_).subspan(i * size, size));
  }
  mix_extras(fields);
  const std::uint64_t seed = group_seed(root_seed(fields, source), group);
  counts.orphaned += feed_.store_soon(place, slot, {keys_, contents_, parent, seed});
  counts.stored += keys_.size();
  counts.groups |= std::uint64_t{1} << group;
}

void EventReader::removed(const Fields& fields, const EventSource& source, std::uint32_t place,
                          EventCounts& counts) {
  const std::uint32_t slot = slot_of(fields.text(kMedium));
  std::size_t held;
  if (fields.has(kOwnHashes)) {
    const std::string_view raw = fields.text(kOwnHashes);
    if (raw.size() % 8 != 0) throw BadMessage("hashes of 8 bytes each");
    keys_.resize(raw.size() / 8);
    std::memcpy(keys_.data(), raw.data(), raw.size());
    held = index_.remove(place, slot, keys_);
  } else {
    read_keys(fields.values[kBlockHashes], domain_of(source, fields.integer(kGroup, 0)));
    held = feed_.remove(place, slot, keys_);
  }
  counts.removed += held;
  counts.unknown += keys_.size() - std::min(held, keys_.size());
}

// `counts` and `digests` are 256 u64 each, little-endian.
void EventReader::compare(const Fields& fields, const EventSource& source, std::uint32_t place,
                          std::vector<Account>& accounts) {
  const std::string_view each = fields.text(kCounts), names = fields.text(kDigests);
  if (each.size() != kDigestRanges * 8 || names.size() != kDigestRanges * 8) {
    throw BadMessage("a digest of another size");
  }
  Account account{place, slot_of(fields.text(kMedium)), {}};
  const RangeDigests own = feed_.digest(place, account.slot, domain_of(source, 0));
  for (std::size_t i = 0; i < kDigestRanges; i++) {
    RangeDigest told;
    std::memcpy(&told.count, each.data() + i * 8, 8);
    std::memcpy(&told.names, names.data() + i * 8, 8);
    account.differ[i] = told != own[i];
  }
  accounts.push_back(account);
}

void EventReader::clear_ranges(const Fields& fields, const EventSource& source, std::uint32_t place,
                               EventCounts& counts) {
  RangeMarks ranges;
  if (!read_marks(fields.text(kRanges), ranges)) throw BadMessage("ranges of another size");
  const std::uint32_t slot = slot_of(fields.text(kMedium));
  counts.renewals++;
  counts.renewed += feed_.remove_ranges(place, slot, domain_of(source, 0), ranges);
}

void EventReader::read_keys(std::string_view list, std::uint64_t domain) {
  if (list.empty()) throw BadMessage("no block_hashes");
  MsgpackReader in(list);
  keys_.resize(in.array());
  for (std::uint64_t& key : keys_) key = read_key(in, domain);
}

// What the chain of a first block begins with: its salt comes in the block's extra keys.
std::uint64_t EventReader::root_seed(const Fields& fields, const EventSource& source) const {
  std::string adapter(fields.text(kLoraName));
  if (adapter.empty() && fields.has(kLoraId)) {
    adapter = std::to_string(fields.integer(kLoraId, 0));
  }
  std::string_view salt = fields.text(kSalt);
  if (salt.empty() && fields.has(kExtraKeys)) {
    MsgpackReader in = fields.reader(kExtraKeys);
    if (in.array() > 0 && in.is_array()) {
      for (std::uint32_t rest = in.array(); rest > 0; rest--) {
        if (in.is_text() && salt.empty()) {
          const std::string_view text = in.text();
          if (text != adapter) salt = text;
        } else {
          in.skip();
        }
      }
    }
  }
  return prefix_seed(source.model_seed, salt, adapter);
}

// What else tells blocks of equal tokens apart (images) becomes a part of their content.
void EventReader::mix_extras(const Fields& fields) {
  if (!fields.has(kExtraKeys)) return;
  const std::string_view adapter = fields.text(kLoraName);
  const bool first = !fields.has(kParent);
  MsgpackReader in = fields.reader(kExtraKeys);
  const std::uint32_t count = in.array();
  for (std::uint32_t i = 0; i < count && i < contents_.size(); i++) {
    if (in.take_nil()) continue;
    bool salted = !first || i > 0 || fields.has(kSalt);  // the salt is in the seed already
    for (std::uint32_t rest = in.array(); rest > 0; rest--) {
      const MsgpackReader begin = in;
      const bool text = in.is_text();
      const std::string_view value = text ? in.text() : std::string_view();
      if (!text) in.skip();
      if (text && value == adapter) continue;
      if (text && !salted) {
        salted = true;
        continue;
      }
      contents_[i] = mix64(contents_[i] ^ hash_bytes(begin.until(in)));
    }
  }
}

}  // namespace moonpool
