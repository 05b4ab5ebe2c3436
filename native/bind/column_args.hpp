// Columns across the binding: arguments are looked at in place through the buffer protocol and
// checked here, in one place; results are numpy arrays that own their memory.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moonpool {

// A held view of somebody's buffer.
class HeldBuffer {
 public:
  HeldBuffer(nanobind::handle from, const char* name, int flags) {
    if (PyObject_GetBuffer(from.ptr(), &view_, flags) == 0) return;
    PyErr_Clear();
    throw nanobind::type_error((std::string(name) + ": a contiguous buffer is needed").c_str());
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  ~HeldBuffer() { PyBuffer_Release(&view_); }

 protected:
  Py_buffer view_{};
};

class BytesArg : HeldBuffer {
 public:
  BytesArg(nanobind::handle from, const char* name) : HeldBuffer(from, name, PyBUF_SIMPLE) {}
  operator std::string_view() const {
    return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }
};

template <std::integral T>
constexpr const char* dtype_name() {
  if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 2 ? "int16" : sizeof(T) == 4 ? "int32" : "int64";
  }
  return sizeof(T) == 2 ? "uint16" : sizeof(T) == 4 ? "uint32" : "uint64";
}

// One-dimensional, contiguous, exactly this integer type; anything else is a TypeError.
template <std::integral T>
class ColumnArg : HeldBuffer {
 public:
  ColumnArg(nanobind::handle from, const char* name, int more_flags = 0)
      : HeldBuffer(from, name, PyBUF_ND | PyBUF_FORMAT | more_flags) {
    constexpr std::string_view kFormats = std::is_signed_v<T> ? "bhilq" : "BHILQ";
    const std::string_view format = view_.format == nullptr ? "B" : view_.format;
    if (view_.ndim == 1 && view_.itemsize == sizeof(T) && format.size() == 1 &&
        kFormats.find(format[0]) != std::string_view::npos) {
      return;
    }
    const std::string text = std::string(name) + ": a one-dimensional contiguous " +
                             dtype_name<T>() + " array is needed, not format " +
                             std::string(format) + " in " + std::to_string(view_.ndim) +
                             " dimensions";
    throw nanobind::type_error(text.c_str());
  }
  operator std::span<const T>() const { return {data(), size()}; }
  const T* data() const { return static_cast<const T*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len) / sizeof(T); }
};

// One that is written to.
template <std::integral T>
class ColumnInOut : ColumnArg<T> {
 public:
  ColumnInOut(nanobind::handle from, const char* name) : ColumnArg<T>(from, name, PyBUF_WRITABLE) {}
  operator std::span<T>() const { return {const_cast<T*>(this->data()), this->size()}; }
};

template <class T>
using Array = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

// A result to be filled in: n values, then handed to Python without a copy.
template <class T>
class ColumnOut {
 public:
  explicit ColumnOut(std::size_t n) : size_(n), values_(std::make_unique<T[]>(n)) {}
  T* data() { return values_.get(); }
  Array<T> take() {
    T* values = values_.get();
    nanobind::capsule owner(values, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    values_.release();
    return Array<T>(values, {size_}, owner);
  }

 private:
  std::size_t size_;
  std::unique_ptr<T[]> values_;
};

template <class T>
Array<T> to_array(const std::vector<T>& values) {
  ColumnOut<T> out(values.size());
  std::copy(values.begin(), values.end(), out.data());
  return out.take();
}

}  // namespace moonpool
