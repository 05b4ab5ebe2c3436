// Block ids as callers give them: contiguous, one-dimensional, integers of 32 or 64 bits.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <span>

namespace moonpool {

// Calls `take` with the ids as a span of their own type; nothing for any other object, whose fault
// Python words.
template <class Take>
void with_block_ids(nanobind::handle from, Take&& take) {
  Py_buffer ids;
  if (PyObject_GetBuffer(from.ptr(), &ids, PyBUF_ND | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return;
  }
  const char code = ids.format != nullptr && std::strlen(ids.format) == 1 ? ids.format[0] : '?';
  const bool is_signed = std::strchr("bhilq", code) != nullptr;
  const auto as = [&]<class Id>(Id) {
    take(
        std::span(static_cast<const Id*>(ids.buf), static_cast<std::size_t>(ids.len) / sizeof(Id)));
  };
  if (ids.ndim == 1 && (is_signed || std::strchr("BHILQ", code) != nullptr)) {
    if (ids.itemsize == 8) {
      is_signed ? as(std::int64_t{}) : as(std::uint64_t{});
    } else if (ids.itemsize == 4) {
      is_signed ? as(std::int32_t{}) : as(std::uint32_t{});
    }
  }
  PyBuffer_Release(&ids);
}

}  // namespace moonpool
