// The shared-memory client for Python, and the views it hands out.
#include "../segment_client.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "buffer.hpp"
#include "segment.hpp"
#include "without_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {

namespace {

std::byte* bytes_of(const Buffer& buffer) { return reinterpret_cast<std::byte*>(buffer.bytes()); }

// A pinned object, readable through the buffer protocol. The pin ends with `release`, or with the
// last reference: an exported buffer holds one.
class View {
 public:
  View(std::shared_ptr<SegmentClient> client, const Pinned& pinned)
      : client_(std::move(client)), pinned_(pinned) {}
  View(View&& other) noexcept
      : client_(std::move(other.client_)), pinned_(other.pinned_), exports_(other.exports_) {}
  View& operator=(View&&) = delete;
  ~View() { unpin(); }

  void release() {
    if (exports_ > 0) {
      PyErr_Format(PyExc_BufferError, "the view cannot be released: %zd buffers of it are in use",
                   exports_);
      throw nb::python_error();
    }
    unpin();
  }
  bool released() const { return client_ == nullptr; }
  std::uint64_t size() const { return pinned_.size; }
  std::uint32_t crc() const { return pinned_.crc; }

  int export_to(PyObject* self, Py_buffer* out, int flags) {
    out->obj = nullptr;
    if (released() || !client_->usable()) {
      PyErr_SetString(PyExc_BufferError, released() ? "the view was released"
                                                    : "the view belongs to the parent process");
      return -1;
    }
    auto* data = const_cast<std::byte*>(pinned_.data);
    const auto size = static_cast<Py_ssize_t>(pinned_.size);
    if (PyBuffer_FillInfo(out, self, data, size, 1, flags) != 0) return -1;
    ++exports_;
    return 0;
  }
  void end_export() { --exports_; }

 private:
  void unpin() {
    if (client_ != nullptr) client_->unpin(pinned_.pin);
    client_.reset();
  }

  std::shared_ptr<SegmentClient> client_;
  Pinned pinned_;
  Py_ssize_t exports_ = 0;
};

int view_get_buffer(PyObject* self, Py_buffer* out, int flags) {
  return nb::inst_ptr<View>(self)->export_to(self, out, flags);
}

void view_release_buffer(PyObject* self, Py_buffer*) { nb::inst_ptr<View>(self)->end_export(); }

PyType_Slot view_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(view_get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(view_release_buffer)},
    {0, nullptr},
};

std::shared_ptr<SegmentClient> open_client(nb::handle where, bool populate) {
  if (nb::isinstance<nb::int_>(where)) {
    const int fd = nb::cast<int>(where);
    const nb::gil_scoped_release release;
    return SegmentClient::open_fd(fd, populate);
  }
  const auto path = nb::cast<std::string>(where);
  const nb::gil_scoped_release release;
  return SegmentClient::open(path, populate);
}

void close_client(SegmentClient& client) {
  Status status;
  {
    const nb::gil_scoped_release release;
    status = client.close();
  }
  if (status == Status::kOk) return;
  PyErr_Format(PyExc_BufferError, "the client cannot be closed: %u views are held", client.pins());
  throw nb::python_error();
}

std::int64_t read_one(SegmentClient& client, std::uint32_t slot, std::uint64_t generation,
                      nb::handle buffer, bool verify) {
  const Buffer to(buffer, true);
  ReadTimes::Watch watch(client.read_times());
  const std::int64_t got = without_gil(
      to.size(), [&] { return client.read(slot, generation, bytes_of(to), to.size(), verify); });
  if (got >= 0) watch.done();
  return got;
}

nb::object read_bytes(SegmentClient& client, std::uint32_t slot, std::uint64_t generation,
                      bool verify) {
  ReadTimes::Watch watch(client.read_times());
  const std::int64_t size = client.size_of(slot, generation);
  if (size < 0) return nb::int_(size);
  nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!out.is_valid()) throw nb::python_error();
  auto* to = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(out.ptr()));
  const auto bytes = static_cast<std::size_t>(size);
  const std::int64_t got =
      without_gil(bytes, [&] { return client.read(slot, generation, to, bytes, verify); });
  if (got < 0) return nb::int_(got);
  watch.done();
  return out;
}

std::int64_t read_range(SegmentClient& client, std::uint32_t slot, std::uint64_t generation,
                        std::uint64_t offset, nb::handle buffer) {
  const Buffer to(buffer, true);
  ReadTimes::Watch watch(client.read_times());
  const Status status = without_gil(to.size(), [&] {
    return client.read_range(slot, generation, offset, bytes_of(to), to.size());
  });
  if (status != Status::kOk) return failure(status);
  watch.done();
  return static_cast<std::int64_t>(to.size());
}

std::vector<Buffer> buffers_of(nb::sequence objects, std::size_t expected, bool writable) {
  std::vector<Buffer> buffers;
  buffers.reserve(expected);
  for (nb::handle object : objects) buffers.emplace_back(object, writable);
  check_same_size(expected, buffers.size(), writable ? "buffers" : "sources");
  return buffers;
}

nb::tuple read_into(SegmentClient& client, nb::handle slot_column, nb::handle generation_column,
                    nb::sequence buffers, bool verify) {
  const ColumnArg<std::uint32_t> slot(slot_column, "slot");
  const ColumnArg<std::uint64_t> generation(generation_column, "generation");
  check_same_size(slot.size(), generation.size(), "generation");
  const std::vector<Buffer> to = buffers_of(buffers, slot.size(), true);
  std::vector<Status> status(slot.size());
  ColumnOut<std::uint64_t> sizes(slot.size());
  {
    const nb::gil_scoped_release release;
    ReadTimes::Watch watch(client.read_times());
    bool any = false;
    for (std::size_t i = 0; i < slot.size(); ++i) {
      const std::int64_t got =
          client.read(slot.data()[i], generation.data()[i], bytes_of(to[i]), to[i].size(), verify);
      status[i] = got < 0 ? static_cast<Status>(-1 - got) : Status::kOk;
      sizes.data()[i] = got < 0 ? 0 : static_cast<std::uint64_t>(got);
      any |= got >= 0;
    }
    if (any) watch.done();
  }
  return nb::make_tuple(statuses(status), sizes.take());
}

nb::tuple write(SegmentClient& client, nb::handle slot_column, nb::handle generation_column,
                nb::sequence sources) {
  const ColumnArg<std::uint32_t> slot(slot_column, "slot");
  const ColumnArg<std::uint64_t> generation(generation_column, "generation");
  check_same_size(slot.size(), generation.size(), "generation");
  const std::vector<Buffer> from = buffers_of(sources, slot.size(), false);
  std::vector<Status> status(slot.size());
  ColumnOut<std::uint32_t> crcs(slot.size());
  {
    const nb::gil_scoped_release release;
    for (std::size_t i = 0; i < slot.size(); ++i) {
      status[i] = client.write(slot.data()[i], generation.data()[i], bytes_of(from[i]),
                               from[i].size(), crcs.data()[i]);
    }
  }
  return nb::make_tuple(statuses(status), crcs.take());
}

std::uint8_t write_range(SegmentClient& client, std::uint32_t slot, std::uint64_t generation,
                         std::uint64_t offset, nb::handle source) {
  const Buffer from(source);
  return static_cast<std::uint8_t>(without_gil(from.size(), [&] {
    return client.write_range(slot, generation, offset, bytes_of(from), from.size());
  }));
}

nb::tuple checksum(SegmentClient& client, std::uint32_t slot, std::uint64_t generation) {
  std::uint32_t crc = 0;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = client.checksum(slot, generation, crc);
  }
  return nb::make_tuple(static_cast<std::uint8_t>(status), crc);
}

nb::object pin(SegmentClient& client, std::uint32_t slot, std::uint64_t generation, bool verify) {
  Pinned pinned;
  if (verify) {
    const nb::gil_scoped_release release;
    pinned = client.pin(slot, generation, true);
  } else {
    pinned = client.pin(slot, generation, false);
  }
  if (pinned.status != Status::kOk) return failed(pinned.status);
  return nb::cast(View(client.shared_from_this(), pinned));
}

nb::tuple take_times(ReadTimes& times) {
  const ReadTimes::Taken taken = times.take();
  ColumnOut<std::uint64_t> counts(taken.counts.size());
  std::copy(taken.counts.begin(), taken.counts.end(), counts.data());
  return nb::make_tuple(counts.take(), taken.nanoseconds);
}

}  // namespace

void bind_segment_client(nb::module_& m) {
  nb::class_<ReadTimes>(m, "ReadTimes")
      .def(nb::init<>())
      .def("add", &ReadTimes::add, "nanoseconds"_a)
      .def("take", &take_times);
  nb::class_<View>(m, "SegmentView", nb::type_slots(view_slots))
      .def("release", &View::release)
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](View& view, nb::args) { view.release(); })
      .def("__len__", &View::size)
      .def_prop_ro("released", &View::released)
      .def_prop_ro("crc", &View::crc);
  nb::class_<SegmentClient>(m, "SegmentClient")
      .def(nb::new_(&open_client), "where"_a, "populate"_a = false)
      .def("close", &close_client)
      .def_prop_ro("closed", &SegmentClient::closed)
      .def_prop_ro(
          "incarnation",
          [](const SegmentClient& client) { return nb::bytes(client.geometry().incarnation, 16); })
      .def_prop_ro("trust_domain",
                   [](const SegmentClient& client) {
                     const Geometry& geometry = client.geometry();
                     return nb::bytes(geometry.trust_domain, geometry.trust_domain_bytes);
                   })
      .def_prop_ro("slots", [](const SegmentClient& client) { return client.geometry().slots; })
      .def_prop_ro("row", &SegmentClient::row)
      .def_prop_ro("row_epoch", &SegmentClient::row_epoch)
      .def("renew_epoch", &SegmentClient::renew_epoch)
      .def_prop_ro("pid", &SegmentClient::pid)
      .def_prop_ro("pins", &SegmentClient::pins)
      .def_prop_ro("read_times", &SegmentClient::read_times, nb::rv_policy::reference_internal)
      .def("read_one", &read_one, "slot"_a, "generation"_a, "buffer"_a, "verify"_a = true)
      .def("read_bytes", &read_bytes, "slot"_a, "generation"_a, "verify"_a = true)
      .def("read_range", &read_range, "slot"_a, "generation"_a, "offset"_a, "buffer"_a)
      .def("read_into", &read_into, "slot"_a, "generation"_a, "buffers"_a, "verify"_a = true)
      .def("write", &write, "slot"_a, "generation"_a, "sources"_a)
      .def("write_range", &write_range, "slot"_a, "generation"_a, "offset"_a, "source"_a)
      .def("checksum", &checksum, "slot"_a, "generation"_a)
      .def("pin", &pin, "slot"_a, "generation"_a, "verify"_a = false);
}

}  // namespace moonpool
