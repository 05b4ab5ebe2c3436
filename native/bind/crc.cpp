#include "bind.hpp"
#include "crc.hpp"
namespace nb = nanobind;
namespace moonpool {
void bind_crc(nb::module_& m) {
  m.def("crc32c", [](nb::bytes b) { return crc32c(b.c_str(), b.size()); });
}
}  // namespace moonpool
