// The segment's agent for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "../crc.hpp"
#include "../segment_agent.hpp"
#include "buffer.hpp"
#include "segment.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {

namespace {

nb::bytes to_bytes(const void* data, std::size_t size) { return nb::bytes(data, size); }

std::span<const std::uint8_t, 16> bytes16(const nb::bytes& value, const char* name) {
  if (value.size() != 16) throw std::invalid_argument(std::string(name) + " must be 16 bytes");
  return std::span<const std::uint8_t, 16>(reinterpret_cast<const std::uint8_t*>(value.c_str()),
                                           16);
}

std::shared_ptr<SegmentAgent> create_agent(const std::optional<std::string>& path,
                                           std::uint64_t capacity_bytes,
                                           std::uint64_t headroom_bytes, std::uint32_t slots,
                                           std::uint32_t rows, const nb::bytes& trust_domain,
                                           bool populate, std::uint32_t tombstones) {
  const SegmentSpec spec{capacity_bytes, headroom_bytes,
                         slots,          rows,
                         tombstones,     std::string(trust_domain.c_str(), trust_domain.size()),
                         populate};
  const nb::gil_scoped_release release;
  return SegmentAgent::create(path, spec);
}

void leave(SegmentAgent& agent, bool destroy) {
  if ((destroy ? agent.destroy() : agent.close()) == Status::kOk) return;
  PyErr_SetString(PyExc_BufferError,
                  "transfers still use the segment: detach it from its endpoint first");
  nb::raise_python_error();
}

nb::dict usage_dict(SegmentAgent& agent) {
  const SegmentUsage usage = agent.usage();
  nb::dict out;
  out["free_bytes"] = usage.free_bytes;
  out["largest_free"] = usage.largest_free;
  out["writing_bytes"] = usage.writing_bytes;
  out["sealed_bytes"] = usage.sealed_bytes;
  out["retired_bytes"] = usage.retired_bytes;
  out["free_slots"] = usage.free_slots;
  out["writing"] = usage.writing;
  out["sealed"] = usage.sealed;
  out["retired"] = usage.retired;
  out["pins"] = usage.pins;
  return out;
}

nb::dict adopted_dict(const SegmentAgent& agent) {
  const Adopted& adopted = agent.adopted();
  nb::dict out;
  out["sealed"] = adopted.sealed;
  out["writing"] = adopted.writing;
  out["retired"] = adopted.retired;
  out["freed"] = adopted.freed;
  out["broken"] = adopted.broken;
  return out;
}

nb::tuple claim(SegmentAgent& agent, nb::handle records, const nb::bytes& blob, std::uint64_t term,
                std::int64_t row, std::uint64_t row_epoch, std::int64_t now_ns) {
  const Buffer buffer(records);
  if (buffer.size() % sizeof(ClaimRecord) != 0) {
    throw std::invalid_argument("claim records take 48 bytes each, got " +
                                std::to_string(buffer.size()) + " bytes");
  }
  std::vector<ClaimRecord> claims(buffer.size() / sizeof(ClaimRecord));
  if (!claims.empty()) std::memcpy(claims.data(), buffer.bytes(), buffer.size());
  std::vector<Claimed> claimed(claims.size());
  {
    const nb::gil_scoped_release release;
    agent.claim(claims, {blob.c_str(), blob.size()}, term,
                row < 0 ? kNoRow : static_cast<std::uint32_t>(row), row_epoch, claimed, now_ns);
  }
  std::vector<Status> status;
  std::vector<std::uint32_t> slot;
  std::vector<std::uint64_t> generation;
  for (const Claimed& one : claimed) {
    status.push_back(one.status);
    slot.push_back(one.slot);
    generation.push_back(one.generation);
  }
  return nb::make_tuple(statuses(status), to_array(slot), to_array(generation));
}

Array<std::uint8_t> seal(SegmentAgent& agent, nb::handle slot_column, nb::handle generation_column,
                         nb::handle crc_column, std::uint32_t flags, std::uint64_t term) {
  const ColumnArg<std::uint32_t> slot(slot_column, "slot");
  const ColumnArg<std::uint64_t> generation(generation_column, "generation");
  const ColumnArg<std::uint32_t> crc(crc_column, "crc");
  check_same_size(slot.size(), generation.size(), "generation");
  check_same_size(slot.size(), crc.size(), "crc");
  std::vector<Status> status(slot.size());
  {
    const nb::gil_scoped_release release;
    agent.seal(slot, generation, crc, flags, term, status);
  }
  return statuses(status);
}

Array<std::uint8_t> abort(SegmentAgent& agent, nb::handle slot_column,
                          nb::handle generation_column) {
  const ColumnArg<std::uint32_t> slot(slot_column, "slot");
  const ColumnArg<std::uint64_t> generation(generation_column, "generation");
  check_same_size(slot.size(), generation.size(), "generation");
  std::vector<Status> status(slot.size());
  {
    const nb::gil_scoped_release release;
    agent.abort(slot, generation, status);
  }
  return statuses(status);
}

std::uint64_t expire(SegmentAgent& agent, nb::handle term_column, nb::handle seq_column) {
  const ColumnArg<std::uint64_t> term(term_column, "term");
  const ColumnArg<std::uint64_t> seq(seq_column, "seq");
  check_same_size(term.size(), seq.size(), "seq");
  const nb::gil_scoped_release release;
  return agent.expire(term, seq);
}

Array<std::uint8_t> retire(SegmentAgent& agent, nb::handle slot_column,
                           nb::handle generation_column, std::uint64_t term, std::int64_t hold_ms,
                           std::int64_t now_ns) {
  const ColumnArg<std::uint32_t> slot(slot_column, "slot");
  const ColumnArg<std::uint64_t> generation(generation_column, "generation");
  check_same_size(slot.size(), generation.size(), "generation");
  std::vector<Status> status(slot.size());
  {
    const nb::gil_scoped_release release;
    agent.retire(slot, generation, term, hold_ms, status, now_ns);
  }
  return statuses(status);
}

nb::dict inventory_columns(const Inventory& found) {
  nb::dict out;
  out["slot"] = to_array(found.slot);
  out["generation"] = to_array(found.generation);
  out["term"] = to_array(found.term);
  out["seq"] = to_array(found.seq);
  out["size"] = to_array(found.size);
  out["crc"] = to_array(found.crc);
  out["tenant"] = to_array(found.tenant);
  out["expiry_ms"] = to_array(found.expiry_ms);
  out["last_used"] = to_array(found.last_used);
  out["replicas"] = to_array(found.replicas);
  out["pin"] = to_array(found.pin);
  out["keys"] = to_bytes(found.keys.data(), found.keys.size());
  out["key_ends"] = to_array(found.key_ends);
  out["parents"] = to_bytes(found.parents.data(), found.parents.size());
  out["parent_ends"] = to_array(found.parent_ends);
  out["next_start"] = found.next_start;
  out["sequence"] = found.sequence;
  return out;
}

nb::dict inventory(SegmentAgent& agent, std::uint64_t start_slot, std::uint64_t slots_max) {
  Inventory found;
  {
    const nb::gil_scoped_release release;
    found = agent.inventory(start_slot, slots_max);
  }
  return inventory_columns(found);
}

nb::dict inventory_of(SegmentAgent& agent, nb::handle slot_column) {
  const ColumnArg<std::uint32_t> slots(slot_column, "slots");
  Inventory found;
  {
    const nb::gil_scoped_release release;
    found = agent.inventory_of(slots);
  }
  return inventory_columns(found);
}

nb::object changes(SegmentAgent& agent, std::uint64_t after_sequence, std::size_t changes_max) {
  const std::optional<std::vector<Change>> found = agent.changes(after_sequence, changes_max);
  if (!found) return nb::none();
  std::vector<std::uint64_t> sequence, generation, term, seq;
  std::vector<std::uint8_t> kind;
  std::vector<std::uint32_t> slot;
  for (const Change& change : *found) {
    sequence.push_back(change.sequence);
    kind.push_back(static_cast<std::uint8_t>(change.kind));
    slot.push_back(change.slot);
    generation.push_back(change.generation);
    term.push_back(change.term);
    seq.push_back(change.seq);
  }
  nb::dict out;
  out["sequence"] = to_array(sequence);
  out["kind"] = to_array(kind);
  out["slot"] = to_array(slot);
  out["generation"] = to_array(generation);
  out["term"] = to_array(term);
  out["seq"] = to_array(seq);
  return out;
}

nb::tuple tombstones(SegmentAgent& agent) {
  std::string hashes;
  std::vector<std::uint64_t> term, seq;
  for (const TombstoneEntry& entry : agent.tombstones()) {
    hashes.append(reinterpret_cast<const char*>(entry.hash), sizeof entry.hash);
    term.push_back(entry.term);
    seq.push_back(entry.seq);
  }
  return nb::make_tuple(to_bytes(hashes.data(), hashes.size()), to_array(term), to_array(seq));
}

nb::object agent_read(SegmentAgent& agent, std::uint32_t slot, std::uint64_t generation,
                      std::uint64_t offset, std::int64_t length) {
  const Window window = agent.open_read(
      slot, generation, offset, length < 0 ? kWholeObject : static_cast<std::uint64_t>(length));
  if (window.status != Status::kOk) return failed(window.status);
  std::size_t bytes = 0;
  for (const Part& part : window.parts) bytes += part.bytes;
  nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  Status status = Status::kOk;
  if (out.is_valid()) {
    char* to = PyBytes_AS_STRING(out.ptr());
    const nb::gil_scoped_release release;
    std::uint32_t crc = 0;
    for (const Part& part : window.parts) {
      std::memcpy(to, part.data, part.bytes);
      crc = crc32c(to, part.bytes, crc);
      to += part.bytes;
    }
    if (bytes == window.size && crc != window.crc) status = Status::kCorrupt;
  }
  const Status closed = agent.close_read(slot, generation);
  if (!out.is_valid()) nb::raise_python_error();
  if (closed != Status::kOk) status = closed;
  return status == Status::kOk ? out : failed(status);
}

std::uint8_t agent_write(SegmentAgent& agent, std::uint32_t slot, std::uint64_t generation,
                         std::uint64_t offset, nb::handle source) {
  const Buffer bytes(source);
  const nb::gil_scoped_release release;
  const Window window = agent.open_write(slot, generation, offset, bytes.size());
  if (window.status != Status::kOk) return static_cast<std::uint8_t>(window.status);
  const unsigned char* from = bytes.bytes();
  for (const Part& part : window.parts) {
    std::memcpy(part.data, from, part.bytes);
    from += part.bytes;
  }
  return static_cast<std::uint8_t>(agent.close_write(slot, generation));
}

}  // namespace

void bind_segment_agent(nb::module_& m) {
  nb::class_<SegmentAgent>(m, "SegmentAgent")
      .def_static("create", &create_agent, "path"_a.none(), "capacity_bytes"_a, "headroom_bytes"_a,
                  "slots"_a, "rows"_a = 64, "trust_domain"_a = nb::bytes("", 0),
                  "populate"_a = true, "tombstones"_a = 4096)
      .def_static("adopt", &SegmentAgent::adopt, "path"_a, "populate"_a = false,
                  nb::call_guard<nb::gil_scoped_release>())
      .def("close", [](SegmentAgent& agent) { leave(agent, false); })
      .def("destroy", [](SegmentAgent& agent) { leave(agent, true); })
      .def_prop_ro("closed", &SegmentAgent::closed)
      .def("fd", &SegmentAgent::fd)
      .def_prop_ro("path", [](const SegmentAgent& agent) { return agent.path(); })
      .def_prop_ro(
          "incarnation",
          [](const SegmentAgent& agent) { return to_bytes(agent.geometry().incarnation, 16); })
      .def_prop_ro("trust_domain",
                   [](const SegmentAgent& agent) {
                     const Geometry& geometry = agent.geometry();
                     return to_bytes(geometry.trust_domain, geometry.trust_domain_bytes);
                   })
      .def_prop_ro("capacity_bytes",
                   [](const SegmentAgent& agent) { return agent.geometry().capacity_bytes; })
      .def_prop_ro("headroom_bytes",
                   [](const SegmentAgent& agent) { return agent.geometry().headroom_bytes; })
      .def_prop_ro("data_bytes",
                   [](const SegmentAgent& agent) { return agent.geometry().data_bytes; })
      .def_prop_ro("slots", [](const SegmentAgent& agent) { return agent.geometry().slots; })
      .def_prop_ro("rows", [](const SegmentAgent& agent) { return agent.geometry().rows; })
      .def_prop_ro("term", &SegmentAgent::term)
      .def_prop_ro("sequence", &SegmentAgent::sequence)
      .def_prop_ro("valid_until_ns", &SegmentAgent::valid_until_ns)
      .def_prop_ro("adopted", &adopted_dict)
      .def("usage", &usage_dict)
      .def(
          "raise_term",
          [](SegmentAgent& agent, std::uint64_t term, const nb::bytes& instance) {
            return agent.raise_term(term, bytes16(instance, "instance"));
          },
          "term"_a, "instance"_a)
      .def("set_valid_until", &SegmentAgent::set_valid_until, "boottime_ns"_a)
      .def("claim", &claim, "records"_a, "blob"_a, "term"_a, "row"_a = -1, "row_epoch"_a = 0,
           "now_ns"_a = kNowNs)
      .def("seal", &seal, "slot"_a, "generation"_a, "crc"_a, "flags"_a, "term"_a)
      .def("abort", &abort, "slot"_a, "generation"_a)
      .def("expire", &expire, "term"_a, "seq"_a)
      .def("retire", &retire, "slot"_a, "generation"_a, "term"_a, "hold_ms"_a = 0,
           "now_ns"_a = kNowNs)
      .def("drain", &SegmentAgent::drain, "now_ns"_a = kNowNs,
           nb::call_guard<nb::gil_scoped_release>())
      .def("inventory", &inventory, "start_slot"_a, "slots_max"_a)
      .def("inventory_of", &inventory_of, "slots"_a)
      .def("changes", &changes, "after_sequence"_a, "changes_max"_a)
      .def(
          "tombstone_add",
          [](SegmentAgent& agent, const nb::bytes& hash, std::uint64_t term, std::uint64_t seq) {
            return static_cast<std::uint8_t>(agent.tombstone_add(bytes16(hash, "hash"), term, seq));
          },
          "hash"_a, "term"_a, "seq"_a)
      .def(
          "tombstone_remove",
          [](SegmentAgent& agent, const nb::bytes& hash) {
            return agent.tombstone_remove(bytes16(hash, "hash"));
          },
          "hash"_a)
      .def("tombstones", &tombstones)
      .def("read", &agent_read, "slot"_a, "generation"_a, "offset"_a = 0, "length"_a = -1)
      .def("write", &agent_write, "slot"_a, "generation"_a, "offset"_a, "source"_a);
}

}  // namespace moonpool
