// The segment room for Python: its errors, what can be said of a file from outside, agent and
// client.
#include "segment.hpp"

#include <nanobind/stl/string.h>

#include <system_error>

#include "../segment_file.hpp"
#include "bind.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {

namespace {

nb::dict segment_info(const std::string& path) {
  const SegmentInfo info = inspect_segment(path);
  const Geometry& geometry = info.geometry;
  nb::dict out;
  out["path"] = path;
  out["problem"] =
      info.problem.empty() ? nb::object(nb::none()) : nb::object(nb::str(info.problem.c_str()));
  out["file_bytes"] = info.file_bytes;
  out["owner_alive"] = info.owner_alive;
  out["owner_pid"] = info.owner_pid;
  out["clients_alive"] = info.clients_alive;
  out["version"] = geometry.version;
  out["incarnation"] = nb::bytes(geometry.incarnation, sizeof geometry.incarnation);
  out["trust_domain"] = nb::bytes(geometry.trust_domain, geometry.trust_domain_bytes);
  out["term"] = info.term;
  out["valid_until_ns"] = info.valid_until_ns;
  out["capacity_bytes"] = geometry.capacity_bytes;
  out["headroom_bytes"] = geometry.headroom_bytes;
  out["data_bytes"] = geometry.data_bytes;
  out["slots"] = geometry.slots;
  out["rows"] = geometry.rows;
  return out;
}

void bind_errors(nb::module_& m) {
  nb::exception<SegmentError> base(m, "SegmentError");
  nb::exception<SegmentLocked>(m, "SegmentLocked", base.ptr());
  nb::exception<SegmentFormat>(m, "SegmentFormat", base.ptr());
  nb::exception<SegmentSpace>(m, "SegmentSpace", base.ptr());
  nb::exception<SegmentFull>(m, "SegmentFull", base.ptr());
  nb::exception<SegmentClosed>(m, "SegmentClosed", base.ptr());
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const std::system_error& failure) {
      const nb::object value = nb::make_tuple(failure.code().value(), failure.what());
      PyErr_SetObject(PyExc_OSError, value.ptr());
    }
  });
}

}  // namespace

void bind_segment(nb::module_& m) {
  bind_errors(m);
  bind_segment_agent(m);
  bind_segment_client(m);
  m.def("segment_info", &segment_info, "path"_a);
  m.def("remove_dead_segment", &remove_dead_segment, "path"_a);
}

}  // namespace moonpool
