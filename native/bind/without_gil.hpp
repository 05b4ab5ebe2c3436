// Work on bytes without Python's lock, where there is enough of it.
#pragma once
#include <nanobind/nanobind.h>

#include <cstddef>

namespace moonpool {

// Below this, giving up the GIL and waiting for it again costs more than the work.
inline constexpr std::size_t kReleaseBytes = 4 << 10;

template <class Work>
auto without_gil(std::size_t bytes, Work work) {
  if (bytes < kReleaseBytes) return work();
  const nanobind::gil_scoped_release release;
  return work();
}

}  // namespace moonpool
