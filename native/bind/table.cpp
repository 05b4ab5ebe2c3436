// Binds the catalog's row table.
#include "table.hpp"

#include <nanobind/stl/pair.h>

#include <memory>
#include <type_traits>

#include "bind.hpp"
#include "column_args.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {

void bind_table_steps(nb::class_<Table>& table);

namespace {

using RowsArg = ColumnArg<std::int32_t>;

// A live view of a column. It owns the column's memory, not the table: no cycle keeps either alive.
template <class View, class T>
nb::object view(Column<T>& column) {
  auto memory = std::make_unique<std::shared_ptr<void>>(column.memory());
  nb::capsule owner(memory.get(),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<void>*>(p); });
  memory.release();
  return nb::cast(Array<View>(column.data(), {column.size()}, owner));
}

// Views are made once and kept as attributes, as policy reads dozens of them per batch.
void set_columns(nb::handle self, Table& table) {
  const auto writable = [&](const char* name, auto& column) {
    using T = std::remove_reference_t<decltype(column[0])>;
    nb::setattr(self, name, view<T>(column));
  };
  const auto read_only = [&](const char* name, auto& column) {
    using T = std::remove_reference_t<decltype(column[0])>;
    nb::setattr(self, name, view<const T>(column));
  };
  writable("state", table.state);
  writable("flags", table.flags);
  writable("tenant", table.tenant);
  writable("term", table.term);
  writable("seq", table.seq);
  writable("size", table.object_size);
  writable("crc", table.crc);
  writable("expiry_ms", table.expiry_ms);
  writable("attempt", table.attempt);
  writable("pin", table.pin);
  writable("wanted", table.wanted);
  read_only("parent", table.tree.parent);
  read_only("first_child", table.tree.first_child);
  read_only("next_sibling", table.tree.next_sibling);
  read_only("prev_sibling", table.tree.prev_sibling);
  read_only("children", table.tree.children);
  read_only("replica", table.replicas.head);
  writable("replica_state", table.replicas.state);
  writable("replica_slot", table.replicas.slot);
  writable("replica_generation", table.replicas.generation);
  read_only("replica_object", table.replicas.object);
  read_only("replica_segment", table.replicas.segment);
  read_only("replica_next", table.replicas.next);
  read_only("replica_list", table.replicas.list);
}

void init(nb::pointer_and_handle<Table> self, std::size_t rows_max, std::size_t replicas_max,
          std::size_t lists_max) {
  Table* table = new (self.p) Table(rows_max, replicas_max, lists_max);
  set_columns(self.h, *table);
}

auto find(const Table& table, nb::handle blob, nb::handle ends) {
  const BytesArg bytes(blob, "blob");
  const ColumnArg<std::uint32_t> stops(ends, "ends");
  ColumnOut<std::int32_t> rows(stops.size());
  table.find(KeyBatch(bytes, stops), rows.data());
  return rows.take();
}

auto intern(Table& table, nb::handle blob, nb::handle ends) {
  const BytesArg bytes(blob, "blob");
  const ColumnArg<std::uint32_t> stops(ends, "ends");
  ColumnOut<std::int32_t> rows(stops.size());
  ColumnOut<bool> fresh(stops.size());
  table.intern(KeyBatch(bytes, stops), rows.data(), fresh.data());
  return std::pair(rows.take(), fresh.take());
}

auto keys(const Table& table, nb::handle rows) {
  const RowsArg of(rows, "rows");
  ColumnOut<std::uint32_t> ends(of.size());
  const std::string blob = table.keys(of, ends.data());
  return std::pair(nb::bytes(blob.data(), blob.size()), ends.take());
}

auto parent_keys(const Table& table, nb::handle rows) {
  const RowsArg of(rows, "rows");
  ColumnOut<std::uint32_t> ends(of.size());
  const std::string blob = table.parent_keys(of, ends.data());
  return std::pair(nb::bytes(blob.data(), blob.size()), ends.take());
}

auto scan(const Table& table, std::int64_t start_row, std::int64_t rows_max, nb::bytes prefix) {
  const auto [rows, next] = table.scan(start_row, rows_max, {prefix.c_str(), prefix.size()});
  return std::pair(to_array(rows), next);
}

void bind_keys(nb::class_<Table>& table) {
  table.def("find", &find, "blob"_a, "ends"_a)
      .def("intern", &intern, "blob"_a, "ends"_a)
      .def(
          "key",
          [](const Table& self, std::int32_t row) {
            const std::string_view key = self.key(row);
            return nb::bytes(key.data(), key.size());
          },
          "row"_a)
      .def("keys", &keys, "rows"_a)
      .def("parent_keys", &parent_keys, "rows"_a)
      .def(
          "erase", [](Table& self, nb::handle rows) { self.erase(RowsArg(rows, "rows")); },
          "rows"_a)
      .def("scan", &scan, "start_row"_a, "rows_max"_a, "prefix"_a = nb::bytes("", 0));
}

auto set_parent(Table& table, nb::handle rows, nb::handle parents) {
  const RowsArg of(rows, "rows"), to(parents, "parents");
  ColumnOut<bool> linked(of.size());
  table.set_parent(of, to, linked.data());
  return linked.take();
}

void bind_tree(nb::class_<Table>& table) {
  table.def("set_parent", &set_parent, "rows"_a, "parents"_a)
      .def(
          "descendants",
          [](Table& self, nb::handle rows) {
            return to_array(self.descendants(RowsArg(rows, "rows")));
          },
          "rows"_a)
      .def(
          "ancestors_order",
          [](Table& self, nb::handle rows) {
            return to_array(self.ancestors_order(RowsArg(rows, "rows")));
          },
          "rows"_a);
}

auto add_replicas(Table& table, nb::handle rows, nb::handle segments, nb::handle slots,
                  nb::handle generations) {
  const RowsArg of(rows, "rows");
  ColumnOut<std::int32_t> added(of.size());
  table.add_replicas(of, ColumnArg<std::uint16_t>(segments, "segments"),
                     ColumnArg<std::uint32_t>(slots, "slots"),
                     ColumnArg<std::uint64_t>(generations, "generations"), added.data());
  return added.take();
}

auto replicas_of(const Table& table, nb::handle rows) {
  const RowsArg of(rows, "rows");
  ColumnOut<std::uint8_t> counts(of.size());
  const auto found = to_array(table.replicas_of(of, counts.data()));
  return std::pair(counts.take(), found);
}

void bind_replicas(nb::class_<Table>& table) {
  table.def("add_replicas", &add_replicas, "rows"_a, "segments"_a, "slots"_a, "generations"_a)
      .def(
          "remove_replicas",
          [](Table& self, nb::handle rows) { self.remove_replicas(RowsArg(rows, "replicas")); },
          "replicas"_a)
      .def("replicas_of", &replicas_of, "rows"_a)
      .def(
          "list_push",
          [](Table& self, std::int64_t list_id, nb::handle rows) {
            self.list_push(list_id, RowsArg(rows, "replicas"));
          },
          "list_id"_a, "replicas"_a)
      .def(
          "list_remove",
          [](Table& self, nb::handle rows) { self.list_remove(RowsArg(rows, "replicas")); },
          "replicas"_a)
      .def(
          "list_touch",
          [](Table& self, nb::handle rows) { self.list_touch(RowsArg(rows, "replicas")); },
          "replicas"_a)
      .def("list_length", &Table::list_length, "list_id"_a)
      .def(
          "list_tail",
          [](const Table& self, std::int64_t list_id, std::int64_t n, std::int64_t skip) {
            return to_array(self.list_tail(list_id, n, skip));
          },
          "list_id"_a, "n"_a, "skip"_a = 0)
      .def(
          "list_iter",
          [](const Table& self, std::int64_t list_id) { return to_array(self.list_iter(list_id)); },
          "list_id"_a);
}

void reserve_batch(Table& table, nb::handle rows, nb::handle sizes, std::uint8_t state,
                   std::uint32_t tenant, std::uint64_t term, std::uint64_t first_seq,
                   std::uint64_t first_attempt, std::int64_t expiry_ms, std::uint8_t wanted,
                   std::uint8_t pin) {
  const Table::Reservation with{state, wanted,    pin,           tenant,
                                term,  first_seq, first_attempt, expiry_ms};
  table.reserve_batch(RowsArg(rows, "rows"), ColumnArg<std::uint64_t>(sizes, "sizes"), with);
}

auto commit_batch(Table& table, nb::handle rows, nb::handle attempts, nb::handle segments,
                  nb::handle slots, nb::handle generations, nb::handle crcs,
                  std::uint8_t state_from, std::uint8_t state_to, bool touch_ancestors) {
  const RowsArg of(rows, "rows");
  const ColumnArg<std::uint64_t> tries(attempts, "attempts"), marks(generations, "generations");
  const ColumnArg<std::uint16_t> in_segments(segments, "segments");
  const ColumnArg<std::uint32_t> in_slots(slots, "slots"), sums(crcs, "crcs");
  ColumnOut<std::uint8_t> status(of.size());
  ColumnOut<std::int32_t> added(of.size());
  table.commit_batch(
      {of, tries, in_segments, in_slots, marks, sums, state_from, state_to, touch_ancestors},
      status.data(), added.data());
  return std::pair(status.take(), added.take());
}

void bind_steps(nb::class_<Table>& table) {
  table
      .def(
          "touch_objects",
          [](Table& self, nb::handle rows, nb::handle seqs) {
            return self.touch_objects(RowsArg(rows, "rows"),
                                      ColumnArg<std::uint64_t>(seqs, "seqs"));
          },
          "rows"_a, "seqs"_a)
      .def("reserve_batch", &reserve_batch, "rows"_a, "sizes"_a, nb::kw_only(), "state"_a,
           "tenant"_a, "term"_a, "first_seq"_a, "first_attempt"_a, "expiry_ms"_a = 0,
           "wanted"_a = 1, "pin"_a = 0)
      .def("commit_batch", &commit_batch, "rows"_a, "attempts"_a, "segments"_a, "slots"_a,
           "generations"_a, "crcs"_a, nb::kw_only(), "state_from"_a, "state_to"_a,
           "touch_ancestors"_a = true);
}

}  // namespace

void bind_table(nb::module_& m) {
  nb::exception<TableFull>(m, "TableFullError");
  nb::class_<Table> table(m, "Table", nb::dynamic_attr());
  table.def("__init__", &init, "rows_max"_a, "replicas_max"_a, "lists_max"_a)
      .def("__len__", &Table::size)
      .def_prop_ro("rows_max", &Table::rows_max)
      .def_prop_ro("replicas_max", &Table::replicas_max)
      .def_prop_ro("lists_max", [](const Table& self) { return self.replicas.lists(); })
      .def_prop_ro("replica_count", [](const Table& self) { return self.replicas.size(); })
      .def("memory_bytes", &Table::memory_bytes);
  bind_keys(table);
  bind_tree(table);
  bind_replicas(table);
  bind_steps(table);
  bind_table_steps(table);
}

}  // namespace moonpool
