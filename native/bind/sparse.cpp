// Row tables and hot buffers of sparse attention. Both hold the memory they point into; the GIL is
// released while rows move.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "buffer.hpp"
#include "column_args.hpp"
#include "helpers.hpp"
#include "hot_buffer.hpp"
#include "region.hpp"
#include "row_table.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

constexpr std::uint32_t kHelpersMax = 64;

using Words = std::atomic<std::uint64_t>;
using U32s = ColumnArg<std::uint32_t>;
using U64s = ColumnArg<std::uint64_t>;

void same_length(std::size_t expected, std::size_t got, const char* name) {
  if (expected == got) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) +
                              " entries, expected " + std::to_string(expected));
}

const Words* word_at(const Buffer& buffer, std::uint64_t offset) {
  if (!within(offset, sizeof(Words), buffer.size())) {
    throw nb::index_error("a guard word lies outside its buffer");
  }
  const unsigned char* at = buffer.bytes() + offset;
  if (reinterpret_cast<std::uintptr_t>(at) % sizeof(Words) != 0) {
    throw std::invalid_argument("a guard word must lie at a multiple of 8 bytes");
  }
  return reinterpret_cast<const Words*>(at);
}

// What a gather came to, as Python sees it: status and the index it is about.
nb::tuple told(const Gathered& gathered) {
  return nb::make_tuple(static_cast<int>(gathered.status), gathered.at);
}

class PyRowTable {
 public:
  PyRowTable(const RowShape& shape, const nb::sequence& buffers, nb::handle unit_buffers,
             nb::handle unit_offsets, nb::handle unit_strides, nb::handle guard_buffer,
             nb::handle guard_offsets, nb::handle guard_values) {
    for (nb::handle buffer : buffers) memory_.emplace_back(buffer);
    const U32s which(unit_buffers, "unit_buffers");
    const U64s offset(unit_offsets, "unit_offsets");
    const U64s stride(unit_strides, "unit_strides");
    same_length(which.size(), offset.size(), "unit_offsets");
    same_length(which.size(), stride.size(), "unit_strides");
    std::vector<RowUnit> units(which.size());
    for (std::size_t i = 0; i < units.size(); i++) {
      if (which.data()[i] >= memory_.size()) throw nb::index_error("a unit names no buffer");
      const Buffer& buffer = memory_[which.data()[i]];
      units[i].base = buffer.bytes() + offset.data()[i];
      units[i].layer_stride = stride.data()[i];
      if (!holds(shape, i, offset.data()[i], stride.data()[i], buffer.size())) {
        throw nb::index_error("a unit lies outside its buffer");
      }
    }
    if (!guard_buffer.is_none()) {
      memory_.emplace_back(guard_buffer);
      const U64s at(guard_offsets, "guard_offsets");
      const U64s expected(guard_values, "guard_values");
      same_length(units.size(), at.size(), "guard_offsets");
      same_length(units.size(), expected.size(), "guard_values");
      for (std::size_t i = 0; i < units.size(); i++) {
        units[i].guard = word_at(memory_.back(), at.data()[i]);
        units[i].expected = expected.data()[i];
      }
    }
    table_.emplace(shape, std::move(units));
  }

  PyRowTable(const PyRowTable&) = delete;

  const RowTable& table() const { return *table_; }

  nb::tuple gather(nb::handle layers, nb::handle counts, nb::handle positions, nb::handle out,
                   Helpers* helpers) const {
    const U32s layer(layers, "layers"), count(counts, "counts"), position(positions, "positions");
    same_length(layer.size(), count.size(), "counts");
    const Buffer to(out, true);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count.size(); i++) total += count.data()[i];
    same_length(total, position.size(), "positions");
    const std::size_t bytes = table_->shape().row_bytes;
    if (total > to.size() / bytes) {
      throw std::invalid_argument(std::to_string(total) + " rows of " + std::to_string(bytes) +
                                  " bytes do not fit a buffer of " + std::to_string(to.size()));
    }
    Gathered result;
    {
      nb::gil_scoped_release release;
      std::size_t done = 0;
      for (std::size_t i = 0; i < layer.size() && result.status == Status::kOk; i++) {
        result = table_->gather(layer.data()[i], std::span(position.data() + done, count.data()[i]),
                                to.bytes() + done * bytes, {}, helpers);
        if (result.status != Status::kOk) result.at += done;
        done += count.data()[i];
      }
    }
    return told(result);
  }

  nb::tuple copy(std::uint32_t layer, std::uint32_t first, std::uint32_t count, nb::handle out,
                 Helpers* helpers) const {
    const Buffer to(out, true);
    if (count > to.size() / table_->shape().row_bytes) {
      throw std::invalid_argument(std::to_string(count) + " rows do not fit a buffer of " +
                                  std::to_string(to.size()) + " bytes");
    }
    Gathered result;
    {
      nb::gil_scoped_release release;
      result = table_->copy(layer, first, count, to.bytes(), helpers);
    }
    return told(result);
  }

 private:
  // Do the rows of unit `number` lie inside? Its last layer is the one that ends last.
  static bool holds(const RowShape& shape, std::size_t number, std::uint64_t offset,
                    std::uint64_t stride, std::uint64_t size) {
    const std::uint64_t first = number * std::uint64_t{shape.unit_tokens};
    if (first >= shape.tokens || shape.layers == 0) return true;  // holds no row of this table
    const std::uint64_t rows = std::min<std::uint64_t>(shape.unit_tokens, shape.tokens - first);
    const std::uint64_t bytes = rows * shape.row_bytes;
    const std::uint64_t layers = shape.layers - 1;
    if (layers > 0 && stride > size / layers) return false;
    return within(offset, layers * stride, size) && within(offset + layers * stride, bytes, size);
  }

  std::vector<Buffer> memory_;
  std::optional<RowTable> table_;
};

// One thread at a time; a second one is told so.
class PyHotBuffer {
 public:
  PyHotBuffer(std::uint32_t layers, std::uint32_t slots, std::uint32_t row_bytes,
              const std::string& policy, std::uint64_t seed, std::uint32_t second_rows)
      : hot_(layers, slots, row_bytes, policy_named(policy), seed, second_rows) {}

  nb::tuple fetch(const PyRowTable& source, nb::handle layers, nb::handle counts,
                  nb::handle positions, nb::handle slots) {
    const U32s layer(layers, "layers"), count(counts, "counts"), position(positions, "positions");
    const ColumnInOut<std::uint32_t> slot(slots, "slots");
    const auto lock = only_user();
    Gathered result;
    {
      nb::gil_scoped_release release;
      result = hot_.fetch(source.table(), layer, count, position, slot);
    }
    return told(result);
  }

  nb::tuple begin(nb::handle layers, nb::handle counts, nb::handle positions, nb::handle slots) {
    const U32s layer(layers, "layers"), count(counts, "counts"), position(positions, "positions");
    const ColumnInOut<std::uint32_t> slot(slots, "slots");
    const auto lock = only_user();
    const std::vector<HotBuffer::Missing>* missing = nullptr;
    {
      nb::gil_scoped_release release;
      missing = &hot_.begin(layer, count, position, slot);
    }
    ColumnOut<std::uint32_t> missing_layers(missing->size()), missing_positions(missing->size());
    for (std::size_t i = 0; i < missing->size(); i++) {
      missing_layers.data()[i] = (*missing)[i].layer;
      missing_positions.data()[i] = (*missing)[i].position;
    }
    missing_count_ = missing->size();
    return nb::make_tuple(missing_layers.take(), missing_positions.take());
  }

  void finish(nb::handle rows) {
    const Buffer from(rows);
    const auto lock = only_user();
    if (hot_.open() && from.size() != missing_count_ * hot_.row_bytes()) {
      throw std::invalid_argument(std::to_string(missing_count_) + " rows of " +
                                  std::to_string(hot_.row_bytes()) + " bytes are missing, not " +
                                  std::to_string(from.size()) + " bytes");
    }
    nb::gil_scoped_release release;
    hot_.finish(from.bytes());
  }

  void abandon() {
    const auto lock = only_user();
    hot_.abandon();
  }
  void clear() {
    const auto lock = only_user();
    hot_.clear();
  }

  nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<3>> rows() {
    auto* owner = new std::shared_ptr<void>(hot_.memory_owner());
    nb::capsule keep(owner,
                     [](void* p) noexcept { delete static_cast<std::shared_ptr<void>*>(p); });
    return {hot_.memory(), {hot_.layers(), hot_.slots(), hot_.row_bytes()}, keep};
  }

  nb::dict counters() const {
    const HotCounters& counted = hot_.counters();
    nb::dict all;
    all["calls"] = counted.calls;
    all["rows"] = counted.rows;
    all["hits"] = counted.hits;
    all["misses"] = counted.misses;
    all["second_hits"] = counted.second_hits;
    all["fetched"] = counted.fetched;
    all["evicted"] = counted.evicted;
    all["second_evicted"] = counted.second_evicted;
    return all;
  }

  const HotBuffer& hot() const { return hot_; }

 private:
  static HotPolicy policy_named(const std::string& name) {
    if (name == "lru") return HotPolicy::kLru;
    if (name == "fifo") return HotPolicy::kFifo;
    if (name == "random") return HotPolicy::kRandom;
    throw std::invalid_argument("unknown hot buffer policy '" + name +
                                "'; know lru, fifo and random");
  }

  std::unique_lock<std::mutex> only_user() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) throw std::runtime_error("this hot buffer is in use by another thread");
    return lock;
  }

  std::mutex mutex_;
  HotBuffer hot_;
  std::size_t missing_count_ = 0;
};

void make_row_table(PyRowTable* self, std::uint32_t row_bytes, std::uint32_t unit_tokens,
                    std::uint32_t layers, std::uint32_t tokens, const nb::sequence& buffers,
                    nb::handle unit_buffers, nb::handle unit_offsets, nb::handle unit_strides,
                    nb::handle guard_buffer, nb::handle guard_offsets, nb::handle guard_values) {
  new (self) PyRowTable({row_bytes, unit_tokens, layers, tokens}, buffers, unit_buffers,
                        unit_offsets, unit_strides, guard_buffer, guard_offsets, guard_values);
}

// Threads beside the caller's.
void make_helpers(Helpers* self, std::uint32_t count) {
  if (count > kHelpersMax) {
    throw std::invalid_argument(std::to_string(count) + " helpers; there can be " +
                                std::to_string(kHelpersMax));
  }
  new (self) Helpers(count);
}

// Words that other processes read at the same time. What was written before is seen before them.
void store_words(nb::handle buffer, nb::handle offsets, nb::handle values) {
  const Buffer memory(buffer, true);
  const U64s at(offsets, "offsets"), value(values, "values");
  same_length(at.size(), value.size(), "values");
  std::vector<Words*> words;
  for (std::size_t i = 0; i < at.size(); i++) {
    words.push_back(const_cast<Words*>(word_at(memory, at.data()[i])));
  }
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); i++) {
    words[i]->store(value.data()[i], std::memory_order_release);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // and what is written next is seen after
}

// Which units hold one of the positions, in order: None when one lies beyond them.
nb::object units_touched(nb::handle positions, std::uint32_t unit_tokens, std::uint32_t units) {
  const U32s column(positions, "positions");
  if (unit_tokens == 0) throw std::invalid_argument("unit_tokens must be above 0");
  std::vector<std::uint8_t> touched(units, 0);
  const bool power = std::has_single_bit(unit_tokens);
  const int shift = std::countr_zero(unit_tokens);
  for (std::size_t i = 0; i < column.size(); i++) {
    const std::uint32_t position = column.data()[i];
    const std::uint32_t unit = power ? position >> shift : position / unit_tokens;
    if (unit >= units) return nb::none();
    touched[unit] = 1;
  }
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t unit = 0; unit < units; unit++) {
    if (touched[unit] != 0) numbers.push_back(unit);
  }
  return nb::cast(to_array(numbers));
}

}  // namespace

void bind_sparse(nb::module_& m) {
  nb::class_<Helpers>(m, "Helpers")
      .def("__init__", make_helpers, "count"_a)
      .def_prop_ro("count", &Helpers::count);
  nb::class_<PyRowTable>(m, "RowTable")
      .def("__init__", make_row_table, "row_bytes"_a, "unit_tokens"_a, "layers"_a, "tokens"_a,
           "buffers"_a, "unit_buffers"_a, "unit_offsets"_a, "unit_strides"_a,
           "guard_buffer"_a = nb::none(), "guard_offsets"_a = nb::none(),
           "guard_values"_a = nb::none())
      .def("gather", &PyRowTable::gather, "layers"_a, "counts"_a, "positions"_a, "out"_a,
           "helpers"_a = nb::none())
      .def("copy", &PyRowTable::copy, "layer"_a, "first"_a, "count"_a, "out"_a,
           "helpers"_a = nb::none());
  nb::class_<PyHotBuffer>(m, "HotBuffer")
      .def(nb::init<std::uint32_t, std::uint32_t, std::uint32_t, const std::string&, std::uint64_t,
                    std::uint32_t>(),
           "layers"_a, "slots"_a, "row_bytes"_a, "policy"_a = "lru", "seed"_a = 0,
           "second_rows"_a = 0)
      .def("fetch", &PyHotBuffer::fetch, "source"_a, "layers"_a, "counts"_a, "positions"_a,
           "slots"_a)
      .def("begin", &PyHotBuffer::begin, "layers"_a, "counts"_a, "positions"_a, "slots"_a)
      .def("finish", &PyHotBuffer::finish, "rows"_a)
      .def("abandon", &PyHotBuffer::abandon)
      .def("clear", &PyHotBuffer::clear)
      .def("counters", &PyHotBuffer::counters)
      .def_prop_ro("rows", &PyHotBuffer::rows, nb::rv_policy::automatic)
      .def_prop_ro("row_memory_bytes",
                   [](const PyHotBuffer& self) { return self.hot().row_memory_bytes(); })
      .def_prop_ro("index_memory_bytes",
                   [](const PyHotBuffer& self) { return self.hot().index_memory_bytes(); });
  m.def("units_touched", units_touched, "positions"_a, "unit_tokens"_a, "units"_a);
  m.def("store_words", store_words, "buffer"_a, "offsets"_a, "values"_a);
}

}  // namespace moonpool
