// Object calls of a connection: reads, puts, claims, seals.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstring>

#include "endpoint_handles.hpp"
#include "put_batch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

using Deadline = std::optional<std::int64_t>;

wire::Id16 incarnation_arg(const nb::bytes& value) {
  wire::Id16 id;
  if (value.size() != id.size()) {
    throw std::invalid_argument("an incarnation has 16 bytes, got " + std::to_string(value.size()));
  }
  std::memcpy(id.data(), value.c_str(), id.size());
  return id;
}

std::vector<Buffer> buffers_of(const nb::sequence& list, bool writable) {
  std::vector<Buffer> buffers;
  buffers.reserve(nb::len(list));
  for (nb::handle one : list) buffers.emplace_back(one, writable);
  return buffers;
}

std::span<const std::uint8_t> bytes_of(const Buffer& buffer) {
  return {buffer.bytes(), buffer.size()};
}

void check_same(std::size_t expected, std::size_t got, const char* name) {
  if (expected == got) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) +
                              " entries, expected " + std::to_string(expected));
}

OpHandle read(const Connection& self, const nb::bytes& incarnation, nb::handle slots,
              nb::handle generations, nb::handle offsets, nb::handle lengths,
              const nb::sequence& destinations, Deadline deadline_ms, bool verify) {
  const ColumnArg<std::uint32_t> slot(slots, "slots");
  const ColumnArg<std::uint64_t> generation(generations, "generations");
  const ColumnArg<std::uint64_t> offset(offsets, "offsets");
  const ColumnArg<std::uint64_t> length(lengths, "lengths");
  std::vector<Buffer> buffers = buffers_of(destinations, true);
  check_same(slot.size(), generation.size(), "generations");
  check_same(slot.size(), offset.size(), "offsets");
  check_same(slot.size(), length.size(), "lengths");
  check_same(slot.size(), buffers.size(), "destinations");
  std::vector<ObjectRead> reads;
  reads.reserve(slot.size());
  for (std::size_t i = 0; i < slot.size(); i++) {
    reads.push_back({slot.data()[i],
                     generation.data()[i],
                     offset.data()[i],
                     length.data()[i],
                     {buffers[i].bytes(), buffers[i].size()}});
  }
  return submit(self,
                read_objects(self->home->endpoint, incarnation_arg(incarnation), reads,
                             deadline_or_default(deadline_ms), verify),
                std::move(buffers));
}

OpHandle gather(const Connection& self, const nb::bytes& incarnation, std::uint32_t row_bytes,
                std::uint32_t unit_tokens, nb::handle slots, nb::handle generations,
                nb::handle offsets, nb::handle strides, nb::handle layers, nb::handle counts,
                nb::handle positions, nb::handle destination, Deadline deadline_ms, bool verify) {
  const ColumnArg<std::uint32_t> slot(slots, "slots"), layer(layers, "layers"),
      count(counts, "counts"), position(positions, "positions");
  const ColumnArg<std::uint64_t> generation(generations, "generations"), offset(offsets, "offsets"),
      stride(strides, "strides");
  std::vector<Buffer> buffers;
  buffers.emplace_back(destination, true);
  Submission submission = gather_rows(
      self->home->endpoint, incarnation_arg(incarnation),
      {row_bytes, unit_tokens, slot, generation, offset, stride, layer, count, position},
      {buffers[0].bytes(), buffers[0].size()}, deadline_or_default(deadline_ms), verify);
  return submit(self, std::move(submission), std::move(buffers));
}

OpHandle put(const Connection& self, const nb::bytes& incarnation, nb::handle records,
             nb::handle blob, std::uint64_t term, const nb::sequence& sources,
             Deadline deadline_ms) {
  const Buffer record_bytes(records);
  const Buffer keys(blob);
  std::vector<Buffer> buffers = buffers_of(sources, false);
  std::vector<ObjectSource> list;
  list.reserve(buffers.size());
  for (const Buffer& buffer : buffers) list.push_back({buffer.bytes(), buffer.size()});
  return submit(self,
                put_objects(self->home->endpoint, incarnation_arg(incarnation),
                            {bytes_of(record_bytes), bytes_of(keys), term}, list,
                            deadline_or_default(deadline_ms)),
                std::move(buffers));
}

// The sequences come as the master sent them, bytes of any alignment.
OpHandle put_batch(const Connection& self, const nb::bytes& incarnation, PutBatch& batch,
                   std::uint64_t term, const nb::bytes& sequences, Deadline deadline_ms) {
  std::vector<std::uint64_t> numbers(sequences.size() / sizeof(std::uint64_t));
  std::memcpy(numbers.data(), sequences.c_str(), numbers.size() * sizeof(std::uint64_t));
  const auto records = batch.numbered(term, numbers);
  std::vector<ObjectSource> list;
  list.reserve(batch.size());
  for (const Buffer& source : batch.sources()) list.push_back({source.bytes(), source.size()});
  return submit(self,
                put_objects(self->home->endpoint, incarnation_arg(incarnation),
                            {records, batch.blob(), term}, list, deadline_or_default(deadline_ms)),
                batch.take_sources());
}

OpHandle claim(const Connection& self, const nb::bytes& incarnation, nb::handle records,
               nb::handle blob, std::uint64_t term, std::int32_t row, std::uint64_t row_epoch,
               Deadline deadline_ms) {
  const Buffer record_bytes(records);
  const Buffer keys(blob);
  return submit(self,
                claim_slots(self->home->endpoint, incarnation_arg(incarnation),
                            {bytes_of(record_bytes), bytes_of(keys), term}, row, row_epoch,
                            deadline_or_default(deadline_ms)),
                {});
}

OpHandle write(const Connection& self, const nb::bytes& incarnation, std::uint32_t slot,
               std::uint64_t generation, std::uint64_t offset, nb::handle source,
               Deadline deadline_ms) {
  std::vector<Buffer> buffers;
  buffers.emplace_back(source);
  Submission submission =
      write_object(self->home->endpoint, incarnation_arg(incarnation), slot, generation, offset,
                   {buffers[0].bytes(), buffers[0].size()}, deadline_or_default(deadline_ms));
  return submit(self, std::move(submission), std::move(buffers));
}

OpHandle seal(const Connection& self, const nb::bytes& incarnation, nb::handle slots,
              nb::handle generations, nb::handle crcs, std::uint32_t flags, std::uint64_t term,
              Deadline deadline_ms) {
  if (flags > kSealComputesCrc) {
    throw std::invalid_argument("seal knows flag 1 only, got " + std::to_string(flags));
  }
  return submit(self,
                seal_slots(self->home->endpoint, incarnation_arg(incarnation),
                           ColumnArg<std::uint32_t>(slots, "slots"),
                           ColumnArg<std::uint64_t>(generations, "generations"),
                           ColumnArg<std::uint32_t>(crcs, "crcs"), flags & kSealComputesCrc, term,
                           deadline_or_default(deadline_ms)),
                {});
}

OpHandle abort(const Connection& self, const nb::bytes& incarnation, nb::handle slots,
               nb::handle generations, Deadline deadline_ms) {
  return submit(self,
                abort_slots(self->home->endpoint, incarnation_arg(incarnation),
                            ColumnArg<std::uint32_t>(slots, "slots"),
                            ColumnArg<std::uint64_t>(generations, "generations"),
                            deadline_or_default(deadline_ms)),
                {});
}

}  // namespace

void bind_endpoint_objects(nb::class_<ConnectionHandle>& connection) {
  connection
      .def("read_objects", read, "incarnation"_a, "slots"_a, "generations"_a, "offsets"_a,
           "lengths"_a, "destinations"_a, "deadline_ms"_a = nb::none(), "verify"_a = true)
      .def("gather_rows", gather, "incarnation"_a, "row_bytes"_a, "unit_tokens"_a, "slots"_a,
           "generations"_a, "offsets"_a, "strides"_a, "layers"_a, "counts"_a, "positions"_a,
           "destination"_a, "deadline_ms"_a = nb::none(), "verify"_a = true)
      .def("put_objects", put, "incarnation"_a, "records"_a, "blob"_a, "term"_a, "sources"_a,
           "deadline_ms"_a = nb::none())
      .def("put_batch", put_batch, "incarnation"_a, "batch"_a, "term"_a, "sequences"_a,
           "deadline_ms"_a = nb::none())
      .def("claim", claim, "incarnation"_a, "records"_a, "blob"_a, "term"_a, "row"_a = -1,
           "row_epoch"_a = 0, "deadline_ms"_a = nb::none())
      .def("write_object", write, "incarnation"_a, "slot"_a, "generation"_a, "offset"_a, "source"_a,
           "deadline_ms"_a = nb::none())
      .def("seal", seal, "incarnation"_a, "slots"_a, "generations"_a, "crcs"_a, "flags"_a, "term"_a,
           "deadline_ms"_a = nb::none())
      .def("abort", abort, "incarnation"_a, "slots"_a, "generations"_a,
           "deadline_ms"_a = nb::none());
}

}  // namespace moonpool
