// The endpoint room for Python: the endpoint itself, what it lends and what it counts.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

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
  take(options.share_cpu, "share_cpu");
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
  put("waits_on_shared_cpu", counters.waits_on_shared_cpu);
  put("cpu_moves", counters.cpu_moves);
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

nb::list take_notifications(EndpointHandle& self, std::size_t most) {
  nb::list taken;
  for (const NotificationBytes& one : self.endpoint.inbox().take(most)) {
    taken.append(nb::bytes(one.data(), one.size()));
  }
  return taken;
}

}  // namespace

void bind_endpoint(nb::module_& m) {
  nb::exception<RefusedError>(m, "RefusedError", PyExc_ConnectionError);
  nb::exception<ClosedError>(m, "EndpointClosedError", PyExc_RuntimeError);

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
