// The endpoint room for Python: endpoint, connections, ops, shared regions.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "endpoint_handles.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {

void EndpointHandle::sweep() {
  std::erase_if(orphans, [](const Orphan& orphan) { return orphan.op->terminal(); });
}

EndpointHandle::~EndpointHandle() {
  nb::gil_scoped_release release;
  endpoint.close();
}

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

void make_endpoint(EndpointHandle* self, std::uint64_t epoch, const nb::bytes& token,
                   const std::vector<std::pair<std::uint32_t, nb::bytes>>& tenants,
                   const nb::kwargs& named) {
  EndpointOptions options;
  auto take = [&](auto& field, const char* name) {
    if (!named.contains(name)) return;
    field = nb::cast<std::remove_reference_t<decltype(field)>>(named[name]);
    nb::del(named[name]);
  };
  take(options.frame_blocks_max, "frame_blocks_max");
  take(options.frame_meta_bytes_max, "frame_meta_bytes_max");
  take(options.frame_payload_bytes_max, "frame_payload_bytes_max");
  take(options.connections_max, "connections_max");
  take(options.connections_per_peer_max, "connections_per_peer_max");
  take(options.regions_max, "regions_max");
  take(options.segments_max, "segments_max");
  take(options.claims_max, "claims_max");
  take(options.ops_max, "ops_max");
  take(options.replies_max, "replies_max");
  take(options.turn_bytes, "turn_bytes");
  take(options.piece_bytes, "piece_bytes");
  take(options.notifications_max, "notifications_max");
  take(options.hello_ms, "hello_ms");
  take(options.deadline_ms, "deadline_ms");
  take(options.deadline_max_ms, "deadline_max_ms");
  take(options.stall_ms, "stall_ms");
  if (named.size() > 0) {
    throw nb::type_error(
        ("unknown endpoint option " + std::string(nb::repr(named.keys()[0]).c_str())).c_str());
  }
  std::vector<TenantToken> openers;
  for (const auto& [tenant, one] : tenants) {
    openers.push_back({tenant, std::string(one.c_str(), one.size())});
  }
  new (self)
      EndpointHandle(epoch, std::string(token.c_str(), token.size()), options, std::move(openers));
}

nb::dict stats(const EndpointHandle& self) {
  nb::dict all;
  const EndpointCounters& counters = self.endpoint.counters();
  auto put = [&](const char* name, const std::atomic<std::uint64_t>& value) {
    all[name] = value.load(std::memory_order_relaxed);
  };
  put("bytes_in", counters.bytes_in);
  put("bytes_out", counters.bytes_out);
  put("requests_served", counters.requests_served);
  put("blocks_served", counters.blocks_served);
  put("replies_received", counters.replies_received);
  put("ops_submitted", counters.ops_submitted);
  put("ops_done", counters.ops_done);
  put("ops_failed", counters.ops_failed);
  put("ops_cancelled", counters.ops_cancelled);
  put("ops_expired", counters.ops_expired);
  put("ops_over_limit", counters.ops_over_limit);
  put("connections_accepted", counters.connections_accepted);
  put("connections_open", counters.connections_open);
  put("connections_made", counters.connections_made);
  put("connections_over_limit", counters.connections_over_limit);
  put("hellos_refused", counters.hellos_refused);
  put("hellos_timed_out", counters.hellos_timed_out);
  put("protocol_errors", counters.protocol_errors);
  put("stalls", counters.stalls);
  put("reads_paused", counters.reads_paused);
  return all;
}

std::uint64_t register_buffer(EndpointHandle& self, nb::handle object, std::string name,
                              bool writable) {
  Buffer buffer(object, writable);
  std::uint64_t id =
      self.endpoint.register_region(std::move(name), buffer.bytes(), buffer.size(), writable);
  self.region_buffers.emplace(id, std::move(buffer));
  return id;
}

void unregister(EndpointHandle& self, std::uint64_t id) {
  bool known = false;
  {
    nb::gil_scoped_release release;
    known = self.endpoint.unregister_region(id);
  }
  self.region_buffers.erase(id);
  if (!known) throw nb::key_error(("no region " + std::to_string(id)).c_str());
}

SharedRegion allocate(EndpointHandle& self, std::uint64_t nbytes, std::string name, bool writable) {
  nb::gil_scoped_release release;
  auto memory = SharedMemory::allocate(nbytes);
  return {self.endpoint.share_region(std::move(name), memory, writable), memory};
}

void attach(EndpointHandle& self, std::shared_ptr<SegmentAgent> agent) {
  self.endpoint.attach(agent);
  self.agents.push_back(std::move(agent));
}

void detach(EndpointHandle& self, const std::shared_ptr<SegmentAgent>& agent) {
  bool known = false;
  {
    nb::gil_scoped_release release;
    known = self.endpoint.detach(*agent);
  }
  std::erase_if(self.agents, [&](const auto& one) { return one.get() == agent.get(); });
  if (!known) throw nb::key_error("this segment is not attached");
}

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

nb::list take_notifications(EndpointHandle& self, std::size_t most) {
  nb::list taken;
  for (const NotificationBytes& one : self.endpoint.inbox().take(most)) {
    taken.append(nb::bytes(one.data(), one.size()));
  }
  return taken;
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

// (crcs, slots, generations) as bytes once every block is well, else None.
nb::object all_well(OpHandle& self) {
  const OpResult& result = self.result();
  const bool well = self.op->state() == OpState::kDone &&
                    std::all_of(result.status.begin(), result.status.end(),
                                [](std::uint8_t status) { return status == 0; });
  if (!well) return nb::none();
  const auto bytes = [](const auto& column) {
    return nb::bytes(column.data(), column.size() * sizeof(column[0]));
  };
  return nb::make_tuple(bytes(result.crcs), bytes(result.slots), bytes(result.generations));
}

void bind_op(nb::module_& m) {
  nb::class_<OpHandle>(m, "Op")
      .def(
          "wait",
          [](OpHandle& self, std::optional<std::int64_t> timeout_ms) {
            self.connection->home->endpoint.check_process();
            bool over = self.op->terminal();
            if (!over) {
              nb::gil_scoped_release release;
              over = self.op->wait(timeout_ms ? std::max<std::int64_t>(*timeout_ms, 0) : -1);
            }
            if (over) self.release_buffers();
            return over;
          },
          "timeout_ms"_a = nb::none())
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
      .def_prop_ro("state",
                   [](OpHandle& self) {
                     self.look();
                     return name_of(self.op->state());
                   })
      .def_prop_ro("terminal", [](OpHandle& self) { return self.look(); })
      .def_prop_ro("ok",
                   [](OpHandle& self) {
                     const auto& status = self.result().status;
                     return self.op->state() == OpState::kDone &&
                            std::all_of(status.begin(), status.end(),
                                        [](auto s) { return s == 0; });
                   })
      .def("all_well", all_well)
      .def_prop_ro("error", [](OpHandle& self) { return self.result().error; })
      .def_prop_ro("status", column<&OpResult::status>, nb::rv_policy::automatic)
      .def_prop_ro("sizes", column<&OpResult::sizes>, nb::rv_policy::automatic)
      .def_prop_ro("crcs", column<&OpResult::crcs>, nb::rv_policy::automatic)
      .def_prop_ro("slots", column<&OpResult::slots>, nb::rv_policy::automatic)
      .def_prop_ro("generations", column<&OpResult::generations>, nb::rv_policy::automatic);
}

nb::class_<ConnectionHandle> bind_connection(nb::module_& m) {
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
      .def("write_raw", raw_transfer<&write_raw>, "region"_a, "remote_offsets"_a, "lengths"_a,
           "buffer"_a, "offsets"_a, "deadline_ms"_a = nb::none(), "checksum"_a = true);
  return connection;
}

}  // namespace

void bind_endpoint(nb::module_& m) {
  nb::exception<RefusedError>(m, "RefusedError", PyExc_ConnectionError);
  nb::exception<ClosedError>(m, "EndpointClosedError", PyExc_RuntimeError);

  bind_op(m);
  nb::class_<SharedRegion>(m, "SharedRegion", nb::type_slots(shared_region_slots))
      .def_ro("region", &SharedRegion::region)
      .def_prop_ro("nbytes", [](SharedRegion& self) { return self.memory->size(); })
      .def_prop_ro("writable", [](SharedRegion& self) { return self.memory->writable(); });
  auto connection = bind_connection(m);
  bind_endpoint_objects(connection);

  nb::class_<EndpointHandle>(m, "Endpoint")
      .def("__init__", make_endpoint, "epoch"_a = 0, "token"_a = nb::bytes("", 0),
           "tenants"_a = std::vector<std::pair<std::uint32_t, nb::bytes>>(), "options"_a)
      .def_prop_ro("epoch", [](EndpointHandle& self) { return self.endpoint.epoch(); })
      .def_prop_ro("closed", [](EndpointHandle& self) { return self.endpoint.closed(); })
      .def(
          "listen_tcp",
          [](EndpointHandle& self, const std::string& host, std::uint16_t port) {
            nb::gil_scoped_release release;
            return self.endpoint.listen_tcp(host, port);
          },
          "host"_a = "127.0.0.1", "port"_a = 0)
      .def(
          "listen_unix",
          [](EndpointHandle& self, const std::string& path) {
            nb::gil_scoped_release release;
            self.endpoint.listen_unix(path);
          },
          "path"_a)
      .def(
          "serve",
          [](EndpointHandle& self, int descriptor) {
            nb::gil_scoped_release release;
            self.endpoint.serve(Descriptor(descriptor));
          },
          "descriptor"_a)
      .def(
          "connect_over",
          [](const std::shared_ptr<EndpointHandle>& self, int descriptor,
             const std::string& address, std::optional<std::int64_t> timeout_ms) {
            std::shared_ptr<ClientConnection> peer;
            {
              nb::gil_scoped_release release;
              peer = self->endpoint.connect_over(Descriptor(descriptor), address,
                                                 deadline_or_default(timeout_ms));
            }
            return std::make_shared<ConnectionHandle>(self, peer);
          },
          "descriptor"_a, "address"_a, "timeout_ms"_a = nb::none())
      .def(
          "connect",
          [](const std::shared_ptr<EndpointHandle>& self, const std::string& address,
             std::optional<std::int64_t> timeout_ms) {
            std::shared_ptr<ClientConnection> peer;
            {
              nb::gil_scoped_release release;
              peer = self->endpoint.connect(address, deadline_or_default(timeout_ms));
            }
            return std::make_shared<ConnectionHandle>(self, peer);
          },
          "address"_a, "timeout_ms"_a = nb::none())
      .def("register", register_buffer, "buffer"_a, "name"_a = "", "writable"_a = false)
      .def("unregister", unregister, "region"_a)
      .def("allocate", allocate, "nbytes"_a, "name"_a = "", "writable"_a = false)
      .def("attach", attach, "agent"_a)
      .def("detach", detach, "agent"_a)
      .def_prop_ro("completion_fd",
                   [](EndpointHandle& self) { return self.endpoint.completions().fd(); })
      .def("completed",
           [](EndpointHandle& self) {
             self.sweep();
             return self.endpoint.completions().drain();
           })
      .def_prop_ro("notification_fd",
                   [](EndpointHandle& self) { return self.endpoint.inbox().fd(); })
      .def("notifications", take_notifications, "most"_a)
      .def("stats", stats)
      .def("close", [](EndpointHandle& self) {
        {
          nb::gil_scoped_release release;
          self.endpoint.close();
        }
        self.sweep();
        self.region_buffers.clear();
        self.agents.clear();
      });
}

}  // namespace moonpool
