#include "bind.hpp"

namespace moonpool {
void bind_table(nanobind::module_&) {}
}  // namespace moonpool
