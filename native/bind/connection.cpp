// Connections for Python, the ops that travel over them, and regions that a peer shares.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <system_error>

#include "block_ids.hpp"
#include "block_ranges.hpp"
#include "endpoint_handles.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {

ConnectionHandle::~ConnectionHandle() {
  nb::gil_scoped_release release;
  home->endpoint.close_connection(peer);
}

OpHandle::~OpHandle() {
  if (!connection || op->terminal()) return;
  connection->peer->watch();
  connection->home->orphans.push_back({op, std::move(buffers_)});
}

const OpResult& OpHandle::result() const {
  if (!op->terminal()) {
    throw std::runtime_error(std::string("the op is ") + name_of(op->state()) +
                             "; wait until it is terminal");
  }
  return op->result();
}

OpHandle submit(const Connection& connection, Submission submission, std::vector<Buffer> buffers) {
  if (!connection->home->orphans.empty()) connection->home->sweep();
  std::shared_ptr<Op> op = submission.op;
  {
    nb::gil_scoped_release release;
    const bool small = submission.small();
    connection->peer->submit(std::move(submission), !small);
  }
  return OpHandle(connection, std::move(op), std::move(buffers));
}

namespace {

nb::list regions_list(const ConnectionHandle& self) {
  nb::list list;
  for (const RegionOffer& region : self.peer->directory().regions) {
    nb::dict one;
    one["id"] = region.id;
    one["name"] = region.name;
    one["nbytes"] = region.size;
    one["writable"] = region.writable;
    one["shared"] = region.shared;
    list.append(one);
  }
  return list;
}

nb::list segments_list(const ConnectionHandle& self) {
  nb::list list;
  for (const SegmentOffer& segment : self.peer->directory().segments) {
    nb::dict one;
    one["incarnation"] = nb::bytes(segment.incarnation.data(), segment.incarnation.size());
    one["capacity_bytes"] = segment.capacity_bytes;
    one["path"] = segment.path;
    list.append(one);
  }
  return list;
}

template <auto Build>
OpHandle raw_transfer(const Connection& self, std::uint64_t region, nb::handle remote_offsets,
                      nb::handle lengths, nb::handle buffer, nb::handle offsets,
                      std::optional<std::int64_t> deadline_ms, bool checksum) {
  using Offsets = ColumnArg<std::uint64_t>;
  std::vector<Buffer> buffers;
  buffers.emplace_back(buffer, Build == &read_raw);
  Submission submission =
      Build(self->home->endpoint, *self->peer, region, Offsets(remote_offsets, "remote_offsets"),
            Offsets(lengths, "lengths"), {buffers[0].bytes(), buffers[0].size()},
            Offsets(offsets, "offsets"), deadline_or_default(deadline_ms), checksum);
  return submit(self, std::move(submission), std::move(buffers));
}

// Equal blocks in a segment: block i is the `nbytes` at offset + i * stride, which is not less.
struct BlockGrid {
  std::uint64_t count, stride, offset, nbytes;

  // False for ids that are no plain array, or name a block that is not there.
  bool offsets_of(nb::handle ids, std::vector<std::uint64_t>* out) const {
    bool good = false;
    with_block_ids(ids, [&](auto numbers) {
      out->resize(numbers.size());
      good = block_offsets(numbers, count, stride, offset, out->data());
    });
    return good;
  }
};

bool all_different(const std::vector<std::uint64_t>& offsets) {
  const auto never = [&](auto order) {
    return std::adjacent_find(offsets.begin(), offsets.end(), order) == offsets.end();
  };
  if (never(std::greater_equal{}) || never(std::less_equal{})) return true;
  std::vector<std::uint64_t> sorted = offsets;
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

// raw_transfer of whole blocks, checked and sent in one step. None where anything is not as usual:
// then nothing was sent, and Python finds a way, or the fault.
template <auto Build>
nb::object block_transfer(const Connection& self, std::uint64_t epoch, std::uint64_t region,
                          const BlockGrid& remote, nb::handle remote_ids, const BlockGrid& local,
                          nb::handle local_ids, nb::handle buffer, std::int64_t deadline_ms,
                          bool checksum) {
  constexpr bool kRead = Build == &read_raw;
  Endpoint& endpoint = self->home->endpoint;
  std::vector<std::uint64_t> there, here;
  if (!self->peer->alive() || self->peer->peer_epoch() != epoch || remote.nbytes != local.nbytes ||
      deadline_ms < 1 || !remote.offsets_of(remote_ids, &there) ||
      !local.offsets_of(local_ids, &here) || there.size() != here.size() || there.empty() ||
      there.size() > endpoint.options().frame_blocks_max ||
      local.nbytes > endpoint.options().frame_payload_bytes_max / there.size() ||
      !all_different(kRead ? here : there)) {
    return nb::none();
  }
  std::vector<Buffer> buffers;
  buffers.emplace_back(buffer, kRead);
  const std::vector<std::uint64_t> lengths(there.size(), local.nbytes);
  Submission submission =
      Build(endpoint, *self->peer, region, there, lengths, {buffers[0].bytes(), buffers[0].size()},
            here, deadline_ms, checksum);
  OpHandle op = submit(self, std::move(submission), std::move(buffers));
  op.nbytes = here.size() * local.nbytes;
  op.local_offsets = std::move(here);
  op.remote_offsets = std::move(there);
  return nb::cast(std::move(op));
}

OpHandle ping(const Connection& self, std::optional<std::int64_t> deadline_ms) {
  Submission submission;
  submission.op =
      self->home->endpoint.make_op(wire::Type::kPing, 0, deadline_or_default(deadline_ms));
  return submit(self, std::move(submission), {});
}

OpHandle fence_connection(const Connection& self, const Connection& old,
                          std::optional<std::int64_t> deadline_ms) {
  if (old->peer == self->peer) {
    throw std::invalid_argument("a connection cannot fence itself; ask over another one");
  }
  return submit(self, fence(self->home->endpoint, *old->peer, deadline_or_default(deadline_ms)),
                {});
}

OpHandle notify(const Connection& self, const nb::bytes& bytes,
                std::optional<std::int64_t> deadline_ms) {
  const std::span<const std::uint8_t> what(reinterpret_cast<const std::uint8_t*>(bytes.c_str()),
                                           bytes.size());
  return submit(self, notify_peer(self->home->endpoint, what, deadline_or_default(deadline_ms)),
                {});
}

// Waits for an op of the binding's own; throws when it did not end well.
void finish(const Op& op) {
  if (op.state() == OpState::kDone) return;
  int error = op.state() == OpState::kExpired ? ETIMEDOUT : ECONNRESET;
  throw std::system_error(error, std::generic_category(), op.result().error);
}

void refresh(const Connection& self, std::optional<std::int64_t> deadline_ms) {
  Submission submission;
  submission.op =
      self->home->endpoint.make_op(wire::Type::kDirectory, 0, deadline_or_default(deadline_ms));
  std::shared_ptr<Op> op = submission.op;
  nb::gil_scoped_release release;
  self->peer->submit(std::move(submission));
  op->wait(-1);
  finish(*op);
  Directory directory;
  if (!decode_directory(op->result().body, &directory)) {
    throw std::system_error(EPROTO, std::generic_category(), "the peer sent a damaged directory");
  }
  self->peer->set_directory(std::move(directory));
}

SharedRegion map_region(const Connection& self, std::uint64_t region,
                        std::optional<std::int64_t> deadline_ms) {
  if (!self->peer->is_unix()) {
    throw std::invalid_argument("regions are shared over UNIX sockets only, not " +
                                self->peer->address());
  }
  Submission submission =
      share_region(self->home->endpoint, *self->peer, region, deadline_or_default(deadline_ms));
  std::shared_ptr<Op> op = submission.op;
  nb::gil_scoped_release release;
  self->peer->submit(std::move(submission));
  op->wait(-1);
  finish(*op);
  const OpResult& result = op->result();
  if (result.status[0] != 0) {
    throw std::invalid_argument("the peer shares no region " + std::to_string(region));
  }
  return {region,
          SharedMemory::map(std::move(op->shared_fd), result.sizes[0], result.crcs[0] != 0)};
}

int shared_region_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* region = nb::inst_ptr<SharedRegion>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, region->memory->memory(),
                           static_cast<Py_ssize_t>(region->memory->size()),
                           region->memory->writable() ? 0 : 1, flags);
}

PyType_Slot shared_region_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(shared_region_buffer)}, {0, nullptr}};

template <auto Field>
auto column(OpHandle& self) {
  return to_array(self.result().*Field);
}

bool wait_for(OpHandle& self, std::optional<std::int64_t> timeout_ms) {
  self.connection->home->endpoint.check_process();
  bool over = self.op->terminal();
  if (!over) {
    nb::gil_scoped_release release;
    over = self.op->wait(timeout_ms ? std::max<std::int64_t>(*timeout_ms, 0) : -1);
  }
  if (over) self.release_buffers();
  return over;
}

bool is_well(OpHandle& self) {
  const auto& status = self.result().status;
  return self.op->state() == OpState::kDone &&
         std::all_of(status.begin(), status.end(), [](auto one) { return one == 0; });
}

// (crcs, slots, generations) as bytes once every block is well, else None.
nb::object all_well(OpHandle& self) {
  const OpResult& result = self.result();
  if (!is_well(self)) return nb::none();
  const auto bytes = [](const auto& column) {
    return nb::bytes(column.data(), column.size() * sizeof(column[0]));
  };
  return nb::make_tuple(bytes(result.crcs), bytes(result.slots), bytes(result.generations));
}

void bind_op(nb::module_& m) {
  nb::class_<OpHandle>(m, "Op")
      .def("wait", wait_for, "timeout_ms"_a = nb::none())
      .def(
          "wait_well",
          [](OpHandle& self, std::int64_t timeout_ms) {
            return wait_for(self, timeout_ms) && is_well(self);
          },
          "timeout_ms"_a)
      .def(
          "wait_well_to_end",
          [](OpHandle& self, std::int64_t grace_ms) {
            return wait_for(self, left_ms(self.op->deadline_ns) + grace_ms) && is_well(self);
          },
          "grace_ms"_a)
      .def_prop_ro("deadline_s",
                   [](OpHandle& self) { return static_cast<double>(self.op->deadline_ns) / 1e9; })
      .def_prop_ro("nbytes", [](OpHandle& self) { return self.nbytes; })
      .def("cancel",
           [](OpHandle& self) {
             self.connection->home->endpoint.check_process();
             nb::gil_scoped_release release;
             self.connection->peer->cancel(self.op);
           })
      .def("notify",
           [](OpHandle& self) {
             self.op->notify(self.connection->home->endpoint.completions());
             self.connection->peer->watch();
           })
      .def_prop_ro("id", [](OpHandle& self) { return self.op->id; })
      .def_prop_ro("count", [](OpHandle& self) { return self.op->count; })
      .def_prop_ro("state",
                   [](OpHandle& self) {
                     self.look();
                     return name_of(self.op->state());
                   })
      .def_prop_ro("terminal", [](OpHandle& self) { return self.look(); })
      .def_prop_ro("ok", is_well)
      .def_prop_ro(
          "local_offsets", [](OpHandle& self) { return to_array(self.local_offsets); },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "remote_offsets", [](OpHandle& self) { return to_array(self.remote_offsets); },
          nb::rv_policy::automatic)
      .def("all_well", all_well)
      .def_prop_ro("error", [](OpHandle& self) { return self.result().error; })
      .def_prop_ro("status", column<&OpResult::status>, nb::rv_policy::automatic)
      .def_prop_ro("sizes", column<&OpResult::sizes>, nb::rv_policy::automatic)
      .def_prop_ro("crcs", column<&OpResult::crcs>, nb::rv_policy::automatic)
      .def_prop_ro("slots", column<&OpResult::slots>, nb::rv_policy::automatic)
      .def_prop_ro("generations", column<&OpResult::generations>, nb::rv_policy::automatic);
}

}  // namespace

nb::class_<ConnectionHandle> bind_connection(nb::module_& m) {
  bind_op(m);
  nb::class_<SharedRegion>(m, "SharedRegion", nb::type_slots(shared_region_slots))
      .def_ro("region", &SharedRegion::region)
      .def_prop_ro("nbytes", [](SharedRegion& self) { return self.memory->size(); })
      .def_prop_ro("writable", [](SharedRegion& self) { return self.memory->writable(); });
  nb::class_<BlockGrid>(m, "BlockGrid")
      .def(
          "__init__",
          [](BlockGrid* self, std::uint64_t count, std::uint64_t stride, std::uint64_t offset,
             std::uint64_t nbytes) { new (self) BlockGrid{count, stride, offset, nbytes}; },
          "count"_a, "stride"_a, "offset"_a, "nbytes"_a);
  nb::class_<ConnectionHandle> connection(m, "Connection");
  connection.def_prop_ro("address", [](ConnectionHandle& self) { return self.peer->address(); })
      .def_prop_ro("peer_epoch", [](ConnectionHandle& self) { return self.peer->peer_epoch(); })
      .def_prop_ro("alive", [](ConnectionHandle& self) { return self.peer->alive(); })
      .def_prop_ro("regions", regions_list)
      .def_prop_ro("segments", segments_list)
      .def("refresh", refresh, "deadline_ms"_a = nb::none())
      .def("map_region", map_region, "region"_a, "deadline_ms"_a = nb::none())
      .def("close",
           [](ConnectionHandle& self) {
             nb::gil_scoped_release release;
             self.home->endpoint.close_connection(self.peer);
           })
      .def("ping", ping, "deadline_ms"_a = nb::none())
      .def("fence", fence_connection, "old"_a, "deadline_ms"_a = nb::none())
      .def("notify", notify, "message"_a, "deadline_ms"_a = nb::none())
      .def("read_raw", raw_transfer<&read_raw>, "region"_a, "remote_offsets"_a, "lengths"_a,
           "buffer"_a, "offsets"_a, "deadline_ms"_a = nb::none(), "checksum"_a = true)
      .def("read_blocks", block_transfer<&read_raw>, "epoch"_a, "region"_a, "remote"_a,
           "remote_ids"_a, "local"_a, "local_ids"_a, "buffer"_a, "deadline_ms"_a, "checksum"_a)
      .def("write_blocks", block_transfer<&write_raw>, "epoch"_a, "region"_a, "remote"_a,
           "remote_ids"_a, "local"_a, "local_ids"_a, "buffer"_a, "deadline_ms"_a, "checksum"_a)
      .def("write_raw", raw_transfer<&write_raw>, "region"_a, "remote_offsets"_a, "lengths"_a,
           "buffer"_a, "offsets"_a, "deadline_ms"_a = nb::none(), "checksum"_a = true);
  return connection;
}

}  // namespace moonpool
