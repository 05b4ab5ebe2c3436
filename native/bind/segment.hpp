// What the segment room's binding files share.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../status.hpp"
#include "column_args.hpp"

namespace moonpool {

void bind_segment_agent(nanobind::module_& m);
void bind_segment_client(nanobind::module_& m);

inline void check_same_size(std::size_t expected, std::size_t got, const char* name) {
  if (expected == got) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) +
                              " entries, expected " + std::to_string(expected));
}

inline Array<std::uint8_t> statuses(const std::vector<Status>& values) {
  ColumnOut<std::uint8_t> out(values.size());
  std::transform(values.begin(), values.end(), out.data(),
                 [](Status status) { return static_cast<std::uint8_t>(status); });
  return out.take();
}

// What a single call answers instead of bytes or a size.
inline nanobind::object failed(Status status) {
  return nanobind::int_(-1 - static_cast<int>(status));
}

}  // namespace moonpool
