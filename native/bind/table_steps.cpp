// Binds the steps of the catalog's decisions.
#include "table_steps.hpp"

#include <nanobind/stl/tuple.h>

#include "bind.hpp"
#include "column_args.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

auto victims(Table& table, nb::handle candidates, std::uint16_t segment, std::uint64_t bytes,
             std::uint64_t objects, std::uint8_t kept_flags, std::uint8_t kept_state,
             std::uint8_t chosen_flag) {
  const ColumnArg<std::int32_t> of(candidates, "candidates");
  const Victims found =
      collect_victims(table, of, {segment, bytes, objects, kept_flags, kept_state, chosen_flag});
  return std::tuple(to_array(found.rows), to_array(found.ends), to_array(found.freed_bytes),
                    to_array(found.freed_objects), to_array(found.spared));
}

auto parents(const Table& table, nb::handle rows, nb::handle parent_of, nb::handle outside,
             std::uint8_t state) {
  const ColumnArg<std::int32_t> of(rows, "rows"), places(parent_of, "parent_of"),
      others(outside, "outside");
  ColumnOut<std::int32_t> found(of.size());
  ColumnOut<std::uint8_t> verdicts(of.size());
  batch_parents(table, of, places, others, state, found.data(), verdicts.data());
  return std::tuple(found.take(), verdicts.take());
}

int ready(Table& table, nb::handle rows, nb::handle attempts, std::uint64_t first,
          std::uint64_t count, std::uint8_t state_from, std::uint8_t state_to,
          std::uint8_t orphan_flag) {
  return commit_ready(table, ColumnArg<std::int32_t>(rows, "rows"),
                      ColumnArg<std::uint64_t>(attempts, "attempts"),
                      {first, count, state_from, state_to, orphan_flag});
}

}  // namespace

void bind_table_steps(nb::module_& m, nb::class_<Table>& table) {
  table
      .def("collect_victims", &victims, "candidates"_a, nb::kw_only(), "segment"_a, "bytes"_a,
           "objects"_a, "kept_flags"_a, "kept_state"_a, "chosen_flag"_a)
      .def("batch_parents", &parents, "rows"_a, "parent_of"_a, "outside"_a, "state"_a)
      .def("commit_ready", &ready, "rows"_a, "attempts"_a, nb::kw_only(), "first"_a, "count"_a,
           "state_from"_a, "state_to"_a, "orphan_flag"_a);
  m.def(
      "slots_vacant",
      [](nb::handle by_slot, nb::handle slots) {
        return slots_vacant(ColumnArg<std::int32_t>(by_slot, "by_slot"),
                            ColumnArg<std::uint32_t>(slots, "slots"));
      },
      "by_slot"_a, "slots"_a);
}

}  // namespace moonpool
