#include "bind.hpp"

namespace moonpool {
void bind_hash(nanobind::module_&) {}
}  // namespace moonpool
