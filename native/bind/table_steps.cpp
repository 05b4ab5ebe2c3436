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

// (rows, parents), or None.
nb::object reserve(Table& table, nb::handle blob, nb::handle ends, nb::handle sizes,
                   nb::handle parent_of, nb::handle outside_blob, nb::handle outside_ends,
                   std::uint8_t parent_state, std::uint8_t state, std::uint32_t tenant,
                   std::uint64_t term, std::uint64_t first, std::int64_t expiry_ms,
                   std::uint8_t wanted, std::uint8_t pin) {
  const BytesArg bytes(blob, "blob"), others(outside_blob, "outside_blob");
  const ColumnArg<std::uint32_t> stops(ends, "ends"), other_stops(outside_ends, "outside_ends");
  const ColumnArg<std::uint64_t> each(sizes, "sizes");
  const ColumnArg<std::int32_t> places(parent_of, "parent_of");
  const KeyBatch keys(bytes, stops), outside(others, other_stops);
  ColumnOut<std::int32_t> rows(keys.size()), parents(keys.size());
  const Table::Reservation with{state, wanted, pin, tenant, term, first, first, expiry_ms};
  if (!reserve_new(table, {keys, each, places, outside, parent_state}, with, rows.data(),
                   parents.data())) {
    return nb::none();
  }
  return nb::make_tuple(rows.take(), parents.take());
}

int commit(Table& table, nb::handle by_slot, nb::handle rows, nb::handle attempts,
           std::uint16_t segment, nb::handle slots, nb::handle generations, nb::handle crcs,
           std::uint64_t first, std::uint64_t count, std::uint8_t state_from, std::uint8_t state_to,
           std::uint8_t orphan_flag, bool touch_ancestors) {
  const ColumnInOut<std::int32_t> holders(by_slot, "by_slot");
  const ColumnArg<std::int32_t> of(rows, "rows");
  const ColumnArg<std::uint64_t> tries(attempts, "attempts"), marks(generations, "generations");
  const ColumnArg<std::uint32_t> in_slots(slots, "slots"), sums(crcs, "crcs");
  return commit_whole(table, holders, {of, tries, segment, in_slots, marks, sums, touch_ancestors},
                      {first, count, state_from, state_to, orphan_flag});
}

}  // namespace

void bind_table_steps(nb::class_<Table>& table) {
  table
      .def("collect_victims", &victims, "candidates"_a, nb::kw_only(), "segment"_a, "bytes"_a,
           "objects"_a, "kept_flags"_a, "kept_state"_a, "chosen_flag"_a)
      .def("batch_parents", &parents, "rows"_a, "parent_of"_a, "outside"_a, "state"_a)
      .def("reserve_new", &reserve, "blob"_a, "ends"_a, "sizes"_a, "parent_of"_a, "outside_blob"_a,
           "outside_ends"_a, nb::kw_only(), "parent_state"_a, "state"_a, "tenant"_a, "term"_a,
           "first"_a, "expiry_ms"_a = 0, "wanted"_a = 1, "pin"_a = 0)
      .def("commit_whole", &commit, "by_slot"_a, "rows"_a, "attempts"_a, "segment"_a, "slots"_a,
           "generations"_a, "crcs"_a, nb::kw_only(), "first"_a, "count"_a, "state_from"_a,
           "state_to"_a, "orphan_flag"_a, "touch_ancestors"_a);
}

}  // namespace moonpool
