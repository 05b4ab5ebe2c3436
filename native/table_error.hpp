#pragma once
#include <stdexcept>

namespace moonpool {

// No row, replica row or key space is left: a full catalog is a normal state of the world.
struct TableFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace moonpool
