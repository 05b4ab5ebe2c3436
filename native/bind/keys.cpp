// Batches of keys as they cross between Python and messages: one blob, and where each key ends.
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "bind.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

bool are_keys(const nb::list& keys, std::size_t bytes_max) {
  for (const nb::handle key : keys) {
    if (!PyBytes_CheckExact(key.ptr())) return false;
    const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr()));
    if (size == 0 || size > bytes_max) return false;
  }
  return true;
}

nb::object new_bytes(std::size_t size) {
  return nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
}

nb::tuple join_keys(const nb::list& keys) {
  std::size_t total = 0;
  for (const nb::handle key : keys) {
    if (!PyBytes_Check(key.ptr())) throw nb::type_error("a key of a batch is not bytes");
    total += static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr()));
  }
  if (total > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a batch's keys are longer than 4 GiB together");
  }
  nb::object blob = new_bytes(total);
  nb::object ends = new_bytes(keys.size() * sizeof(std::uint32_t));
  if (!blob.is_valid() || !ends.is_valid()) throw nb::python_error();
  char* to = PyBytes_AS_STRING(blob.ptr());
  char* end = PyBytes_AS_STRING(ends.ptr());
  std::uint32_t at = 0;
  for (const nb::handle key : keys) {
    const auto size = static_cast<std::uint32_t>(PyBytes_GET_SIZE(key.ptr()));
    std::memcpy(to + at, PyBytes_AS_STRING(key.ptr()), size);
    at += size;
    std::memcpy(end, &at, sizeof at);
    end += sizeof at;
  }
  return nb::make_tuple(blob, ends);
}

}  // namespace

void bind_keys(nb::module_& m) {
  m.def("are_keys", are_keys, "keys"_a, "bytes_max"_a,
        "Whether each is a bytes object of 1 to bytes_max bytes.");
  m.def("join_keys", join_keys, "keys"_a,
        "The keys back to back, and the end of each in there as u32, both as bytes.");
}
}  // namespace moonpool
