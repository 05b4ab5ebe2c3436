// CRC-32C and checked copies for Python.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "buffer.hpp"
#include "copy.hpp"
#include "crc.hpp"
#include "without_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

std::uint32_t crc_of(nb::handle data, std::uint32_t seed, decltype(CrcKernel::crc) crc) {
  const Buffer buffer(data);
  return without_gil(buffer.size(), [&] { return crc(buffer.bytes(), buffer.size(), seed); });
}

std::uint32_t copy_of(nb::handle dst, nb::handle src, std::uint32_t seed) {
  const Buffer to(dst, true);
  const Buffer from(src);
  if (to.size() < from.size()) {
    throw std::invalid_argument("copy_crc32c: " + std::to_string(from.size()) +
                                " bytes do not fit into a buffer of " + std::to_string(to.size()));
  }
  if (to.overlaps(from)) throw std::invalid_argument("copy_crc32c: the buffers overlap");
  return without_gil(from.size(),
                     [&] { return copy_crc32c(to.bytes(), from.bytes(), from.size(), seed); });
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const CrcKernel& kernel : crc_kernels()) names.emplace_back(kernel.name);
  return names;
}

std::uint32_t crc_by_kernel(const std::string& name, nb::handle data, std::uint32_t seed) {
  for (const CrcKernel& kernel : crc_kernels()) {
    if (name == kernel.name) return crc_of(data, seed, kernel.crc);
  }
  throw std::invalid_argument("crc32c_with: this CPU has no implementation named " + name);
}

}  // namespace

void bind_crc(nb::module_& m) {
  m.def(
      "crc32c", [](nb::handle data, std::uint32_t seed) { return crc_of(data, seed, crc32c); },
      "data"_a, "seed"_a = 0);
  m.def("crc32c_with", crc_by_kernel, "implementation"_a, "data"_a, "seed"_a = 0);
  m.def("crc32c_combine", crc32c_combine, "crc_a"_a, "crc_b"_a, "size_b"_a);
  m.def("crc32c_implementation", crc32c_implementation);
  m.def("crc32c_implementations", kernel_names);
  m.def("copy_crc32c", copy_of, "dst"_a, "src"_a, "seed"_a = 0);
}

}  // namespace moonpool
