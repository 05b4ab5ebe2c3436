// Block copies between mapped memory, for the local and shared-memory transports.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "bind.hpp"
#include "block_copy.hpp"

namespace nb = nanobind;

namespace moonpool {
namespace {

using Offsets = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A contiguous buffer of some Python object, kept from moving or unmapping while held.
class HeldBuffer {
 public:
  HeldBuffer(nb::handle object, bool writable) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  ~HeldBuffer() { PyBuffer_Release(&view_); }
  Range range() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
};

std::span<const std::uint64_t> span_of(const Offsets& offsets) {
  return {offsets.data(), offsets.size()};
}

template <class T>
nb::object array_of(const std::vector<T>& values) {
  auto copy = std::make_unique<std::vector<T>>(values);
  T* data = copy->data();
  const std::size_t size = copy->size();
  nb::capsule owner(copy.release(),
                    [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

// Holds both buffers until it is destroyed, so that neither can be unmapped under a running copy.
class PyBlockCopy {
 public:
  PyBlockCopy(nb::handle dst, Offsets dst_offsets, nb::handle src, Offsets src_offsets,
              Offsets lengths, bool checksum)
      : dst_(dst, true),
        src_(src, false),
        copy_(dst_.range(), span_of(dst_offsets), src_.range(), span_of(src_offsets),
              span_of(lengths), checksum) {}

  int run(std::int64_t deadline_ns) {
    nb::gil_scoped_release release;
    return static_cast<int>(copy_.run(deadline_ns));
  }
  void cancel() { copy_.cancel(); }
  nb::object status() const { return array_of(copy_.status()); }
  nb::object crc() const { return array_of(copy_.crc()); }

 private:
  HeldBuffer dst_;
  HeldBuffer src_;
  BlockCopy copy_;
};

}  // namespace

void bind_transfer(nb::module_& m) {
  nb::class_<PyBlockCopy>(m, "BlockCopy")
      .def(nb::init<nb::handle, Offsets, nb::handle, Offsets, Offsets, bool>(), nb::arg("dst"),
           nb::arg("dst_offsets"), nb::arg("src"), nb::arg("src_offsets"), nb::arg("lengths"),
           nb::arg("checksum"))
      .def("run", &PyBlockCopy::run, nb::arg("deadline_ns"))
      .def("cancel", &PyBlockCopy::cancel)
      .def("status", &PyBlockCopy::status)
      .def("crc", &PyBlockCopy::crc);
}

}  // namespace moonpool
