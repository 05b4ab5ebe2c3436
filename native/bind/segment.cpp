#include "bind.hpp"

namespace moonpool {
void bind_segment(nanobind::module_&) {}
}  // namespace moonpool
