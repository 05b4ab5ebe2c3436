// A caller's buffer, held for the length of one call (or as long as this object lives).
#pragma once
#include <nanobind/nanobind.h>

#include <cstddef>

namespace moonpool {

// Anything with the buffer protocol, C-contiguous: bytes, bytearray, memoryview, numpy, mmap, torch
// through numpy. The exporter cannot resize or free it while this lives. Must be made and destroyed
// with the GIL held; the pointer may be used without. Throws the exporter's own BufferError or
// TypeError, for example when `writable` is asked of bytes.
class Buffer {
 public:
  explicit Buffer(nanobind::handle object, bool writable = false) {
    const int flags = writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nanobind::python_error();
  }
  Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }  // does nothing on an empty view

  unsigned char* bytes() const { return static_cast<unsigned char*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

  bool overlaps(const Buffer& other) const {
    return bytes() < other.bytes() + other.size() && other.bytes() < bytes() + size();
  }

 private:
  Py_buffer view_{};
};

}  // namespace moonpool
