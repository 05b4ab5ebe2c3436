#include "bind.hpp"

namespace moonpool {
void bind_endpoint(nanobind::module_&) {}
}  // namespace moonpool
