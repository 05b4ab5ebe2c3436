// Binds the catalog's row table.
#include "bind.hpp"
#include "table.hpp"

namespace moonpool {
void bind_table(nanobind::module_& m) { nanobind::exception<TableFull>(m, "TableFullError"); }
}  // namespace moonpool
