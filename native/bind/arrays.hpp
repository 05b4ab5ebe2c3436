// Columns between numpy and the core: checked once here, never copied on the way in.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace moonpool {

// An argument column: one-dimensional, contiguous, exactly this dtype (TypeError otherwise).
template <class T>
using Column = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// A result column that owns its memory.
template <class T>
using NumpyColumn = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

template <class T>
std::span<const T> view_of(const Column<T>& column) {
  return {column.data(), column.size()};
}

inline void check_same_size(std::size_t expected, std::size_t got, const char* name) {
  if (expected != got) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) + " entries, expected " +
                                std::to_string(expected));
  }
}

// Hands a vector's memory to numpy.
template <class T>
  requires std::is_arithmetic_v<T>
NumpyColumn<T> to_numpy(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nanobind::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return NumpyColumn<T>(kept->data(), {kept->size()}, owner);
}

// Enumerations of one byte travel as uint8.
template <class T>
  requires std::is_enum_v<T>
NumpyColumn<std::uint8_t> to_numpy(const std::vector<T>& values) {
  std::vector<std::uint8_t> bytes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) bytes[i] = static_cast<std::uint8_t>(values[i]);
  return to_numpy(std::move(bytes));
}

// The bytes behind any object with the buffer protocol, held until destruction.
class Buffer {
 public:
  Buffer(nanobind::handle object, bool writable) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) nanobind::raise_python_error();
  }
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  Buffer& operator=(Buffer&&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

}  // namespace moonpool
