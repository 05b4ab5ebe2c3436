// Submissions on objects of a peer's segments.
#include <cstring>
#include <stdexcept>
#include <string>

#include "endpoint_requests.hpp"
#include "segment_agent.hpp"

namespace moonpool {
namespace {

Submission on_segment(Endpoint& endpoint, wire::Type type, const wire::Id16& incarnation,
                      std::size_t count, std::int64_t deadline_ms) {
  Submission submission;
  submission.op = endpoint.make_op(type, count, deadline_ms);
  submission.target = incarnation;
  return submission;
}

template <class T>
void append(std::vector<std::uint8_t>& meta, const T& value) {
  std::size_t at = meta.size();
  meta.resize(at + sizeof(T));
  std::memcpy(meta.data() + at, &value, sizeof(T));
}

void append(std::vector<std::uint8_t>& meta, std::span<const std::uint8_t> bytes) {
  std::size_t at = meta.size();
  meta.resize(at + bytes.size());
  if (!bytes.empty()) std::memcpy(meta.data() + at, bytes.data(), bytes.size());
}

void check_count(const char* name, std::size_t got, std::size_t expected) {
  if (got == expected) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) +
                              " entries, expected " + std::to_string(expected));
}

void check_payload(const Endpoint& endpoint, std::uint64_t total) {
  if (total <= endpoint.options().frame_payload_bytes_max) return;
  throw std::invalid_argument("a batch moves at most frame_payload_bytes_max = " +
                              std::to_string(endpoint.options().frame_payload_bytes_max) +
                              " bytes");
}

// A peer ends the connection over more, and all that is under way on it.
void check_meta(const Endpoint& endpoint, const char* name, std::size_t size) {
  if (size <= endpoint.options().frame_meta_bytes_max) return;
  throw std::invalid_argument(std::string(name) + " take at most frame_meta_bytes_max = " +
                              std::to_string(endpoint.options().frame_meta_bytes_max) +
                              " bytes, got " + std::to_string(size));
}

// Meta and size checks that claims share with puts.
Submission with_claims(Endpoint& endpoint, wire::Type type, const wire::Id16& incarnation,
                       const ClaimList& claims, wire::Writer writer, std::int64_t deadline_ms) {
  if (claims.records.size() % wire::kClaimRecordBytes != 0) {
    throw std::invalid_argument("claim records take 48 bytes each, got " +
                                std::to_string(claims.records.size()) + " bytes");
  }
  std::size_t count = claims.records.size() / wire::kClaimRecordBytes;
  std::size_t text = 0;
  for (std::size_t i = 0; i < count; i++) {
    auto record = wire::load<ClaimRecord>(claims.records.data() + i * wire::kClaimRecordBytes);
    text += std::size_t{record.key_len} + record.parent_len;
  }
  if (text != claims.blob.size()) {
    throw std::invalid_argument("the claims' keys take " + std::to_string(text) +
                                " bytes, the blob has " + std::to_string(claims.blob.size()));
  }
  check_meta(endpoint, "a batch's claims",
             sizeof(writer) + claims.records.size() + claims.blob.size());
  Submission submission = on_segment(endpoint, type, incarnation, count, deadline_ms);
  submission.term = claims.term;
  append(submission.meta, writer);
  append(submission.meta, claims.records);
  append(submission.meta, claims.blob);
  return submission;
}

std::uint8_t* only_read(const std::uint8_t* memory) { return const_cast<std::uint8_t*>(memory); }

template <class T>
void append_all(std::vector<std::uint8_t>& meta, std::span<const T> values) {
  append(meta, {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()});
}

}  // namespace

Submission gather_rows(Endpoint& endpoint, const wire::Id16& incarnation, const RowsWanted& wanted,
                       Op::Room room, std::int64_t deadline_ms, bool verify) {
  check_count("generations", wanted.generations.size(), wanted.slots.size());
  check_count("offsets", wanted.offsets.size(), wanted.slots.size());
  check_count("strides", wanted.strides.size(), wanted.slots.size());
  check_count("counts", wanted.counts.size(), wanted.layers.size());
  std::uint64_t total = 0;
  for (const std::uint32_t count : wanted.counts) total += count;
  check_count("positions", wanted.positions.size(), total);
  if (wanted.row_bytes == 0 || wanted.unit_tokens == 0) {
    throw std::invalid_argument("rows and units have at least one byte and one token");
  }
  if (total > room.size / wanted.row_bytes) {
    throw std::invalid_argument(std::to_string(total) + " rows of " +
                                std::to_string(wanted.row_bytes) +
                                " bytes do not fit a buffer of " + std::to_string(room.size));
  }
  check_payload(endpoint, total * wanted.row_bytes);
  check_meta(endpoint, "a gather's units, layers and positions",
             sizeof(wire::GatherHead) + wanted.slots.size() * sizeof(wire::GatherUnit) +
                 wanted.layers.size() * sizeof(wire::GatherLayer) + wanted.positions.size_bytes());
  Submission submission =
      on_segment(endpoint, wire::Type::kGatherRows, incarnation, wanted.layers.size(), deadline_ms);
  submission.flags = verify ? wire::kFlagChecksum : 0;
  submission.op->checksum = verify;
  append(submission.meta, wire::GatherHead{wanted.row_bytes, wanted.unit_tokens,
                                           static_cast<std::uint32_t>(wanted.slots.size()),
                                           static_cast<std::uint32_t>(total)});
  for (std::size_t i = 0; i < wanted.slots.size(); i++) {
    append(submission.meta, wire::GatherUnit{wanted.slots[i], 0, wanted.generations[i],
                                             wanted.offsets[i], wanted.strides[i]});
  }
  for (std::size_t i = 0; i < wanted.layers.size(); i++) {
    append(submission.meta, wire::GatherLayer{wanted.layers[i], wanted.counts[i]});
    const std::uint64_t bytes = std::uint64_t{wanted.counts[i]} * wanted.row_bytes;
    submission.op->rooms.push_back({room.memory, bytes});
    room.memory += bytes;
  }
  append_all(submission.meta, wanted.positions);
  return submission;
}

Submission read_objects(Endpoint& endpoint, const wire::Id16& incarnation,
                        std::span<const ObjectRead> reads, std::int64_t deadline_ms, bool verify) {
  Submission submission =
      on_segment(endpoint, wire::Type::kReadObjects, incarnation, reads.size(), deadline_ms);
  submission.op->checksum = verify;
  submission.flags = verify ? wire::kFlagChecksum : 0;
  std::uint64_t total = 0;
  for (const ObjectRead& read : reads) {
    bool whole = read.length == wire::kWholeObject;
    if (!whole && read.length > read.room.size) {
      throw std::invalid_argument("a range of " + std::to_string(read.length) +
                                  " bytes does not fit its buffer of " +
                                  std::to_string(read.room.size));
    }
    std::uint64_t length = whole ? read.room.size : read.length;
    total += length;
    check_payload(endpoint, length);
    check_payload(endpoint, total);
    append(submission.meta,
           wire::ObjectBlock{read.slot, whole, read.generation, read.offset, length});
    submission.op->rooms.push_back({read.room.memory, length});
  }
  return submission;
}

Submission put_objects(Endpoint& endpoint, const wire::Id16& incarnation, const ClaimList& claims,
                       std::span<const ObjectSource> sources, std::int64_t deadline_ms) {
  Submission submission =
      with_claims(endpoint, wire::Type::kPutObjects, incarnation, claims, {}, deadline_ms);
  check_count("sources", sources.size(), submission.op->count);
  submission.flags = wire::kFlagChecksum;
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < sources.size(); i++) {
    auto record = wire::load<ClaimRecord>(claims.records.data() + i * wire::kClaimRecordBytes);
    if (record.size != sources[i].size) {
      throw std::invalid_argument("claim " + std::to_string(i) + " is of " +
                                  std::to_string(record.size) + " bytes, its source has " +
                                  std::to_string(sources[i].size));
    }
    total += record.size;
    check_payload(endpoint, total);
    submission.pieces.push_back({only_read(sources[i].memory), sources[i].size, i});
  }
  return submission;
}

Submission claim_slots(Endpoint& endpoint, const wire::Id16& incarnation, const ClaimList& claims,
                       std::int32_t row, std::uint64_t row_epoch, std::int64_t deadline_ms) {
  return with_claims(endpoint, wire::Type::kClaim, incarnation, claims, {row, 0, row_epoch},
                     deadline_ms);
}

Submission write_object(Endpoint& endpoint, const wire::Id16& incarnation, std::uint32_t slot,
                        std::uint64_t generation, std::uint64_t offset, ObjectSource source,
                        std::int64_t deadline_ms) {
  check_payload(endpoint, source.size);
  Submission submission =
      on_segment(endpoint, wire::Type::kWriteObject, incarnation, 1, deadline_ms);
  submission.flags = wire::kFlagChecksum;
  append(submission.meta, wire::ObjectBlock{slot, 0, generation, offset, source.size});
  submission.pieces.push_back({only_read(source.memory), source.size, 0});
  return submission;
}

Submission seal_slots(Endpoint& endpoint, const wire::Id16& incarnation,
                      std::span<const std::uint32_t> slots,
                      std::span<const std::uint64_t> generations,
                      std::span<const std::uint32_t> crcs, bool agent_computes, std::uint64_t term,
                      std::int64_t deadline_ms) {
  check_count("generations", generations.size(), slots.size());
  check_count("crcs", crcs.size(), slots.size());
  Submission submission =
      on_segment(endpoint, wire::Type::kSeal, incarnation, slots.size(), deadline_ms);
  submission.flags = agent_computes ? wire::kFlagAgentCrc : 0;
  submission.term = term;
  for (std::size_t i = 0; i < slots.size(); i++) {
    append(submission.meta, wire::SlotBlock{slots[i], crcs[i], generations[i]});
  }
  return submission;
}

Submission abort_slots(Endpoint& endpoint, const wire::Id16& incarnation,
                       std::span<const std::uint32_t> slots,
                       std::span<const std::uint64_t> generations, std::int64_t deadline_ms) {
  check_count("generations", generations.size(), slots.size());
  Submission submission =
      on_segment(endpoint, wire::Type::kAbort, incarnation, slots.size(), deadline_ms);
  for (std::size_t i = 0; i < slots.size(); i++) {
    append(submission.meta, wire::SlotBlock{slots[i], 0, generations[i]});
  }
  return submission;
}

}  // namespace moonpool
