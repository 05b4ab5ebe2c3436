// An engine's cache against packed objects.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>

#include "../packed_blocks.hpp"
#include "bind.hpp"
#include "buffer.hpp"
#include "column_args.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

// Holds the memory of all layers.
class PyPackedBlocks {
 public:
  explicit PyPackedBlocks(nb::sequence layers) : blocks_(layers_of(layers)) {}
  PyPackedBlocks(const PyPackedBlocks&) = delete;
  PyPackedBlocks& operator=(const PyPackedBlocks&) = delete;

  std::size_t object_bytes() const { return blocks_.object_bytes(); }

  Array<std::uint8_t> unpack(nb::handle block_ids, nb::sequence objects, nb::handle crcs) {
    return unpacked(block_ids, objects, crcs, [&](const auto& job, auto sums, auto good) {
      blocks_.unpack(job.ids, job.at, sums, good);
    });
  }

  Array<std::uint8_t> unpack_layers(nb::handle block_ids, nb::sequence objects, nb::handle crcs,
                                    LayerGate& gate) {
    return unpacked(block_ids, objects, crcs, [&](const auto& job, auto sums, auto good) {
      blocks_.unpack_layers(job.ids, job.at, sums, good, gate);
    });
  }

  void pack(std::size_t layer, nb::handle block_ids, nb::sequence objects) {
    if (layer >= blocks_.layers()) throw std::out_of_range("there is no such layer");
    const Job<std::byte> job(blocks_, block_ids, objects);
    const nb::gil_scoped_release release;
    blocks_.pack(layer, job.ids, job.at);
  }

 private:
  // What one call moves, held and checked.
  template <class Byte>
  struct Objects {
    Objects(std::size_t size, nb::sequence from) {
      for (nb::handle object : from) {
        const Buffer& buffer = held.emplace_back(object, !std::is_const_v<Byte>);
        if (buffer.size() != size) {
          throw std::invalid_argument("an object of " + std::to_string(buffer.size()) +
                                      " bytes, not of " + std::to_string(size));
        }
        at.push_back(reinterpret_cast<Byte*>(buffer.bytes()));
      }
    }
    std::vector<Buffer> held;
    std::vector<Byte*> at;
  };

  template <class Byte>
  struct Job : Objects<Byte> {
    Job(const PackedBlocks& blocks, nb::handle block_ids, nb::sequence from)
        : Objects<Byte>(blocks.object_bytes(), from), column(block_ids, "block_ids"), ids(column) {
      if (this->at.size() != ids.size()) {
        throw std::invalid_argument("as many objects as block_ids are needed");
      }
      blocks.check(ids);
    }
    ColumnArg<std::uint64_t> column;
    std::span<const std::uint64_t> ids;
  };

  template <class Call>
  Array<std::uint8_t> unpacked(nb::handle block_ids, nb::sequence objects, nb::handle crc_column,
                               Call call) {
    const Job<const std::byte> job(blocks_, block_ids, objects);
    const ColumnArg<std::uint32_t> crcs(crc_column, "crcs");
    if (crcs.size() > job.ids.size()) throw std::invalid_argument("crcs: more than objects");
    ColumnOut<std::uint8_t> good(job.ids.size());
    {
      const nb::gil_scoped_release release;
      call(job, std::span<const std::uint32_t>(crcs), std::span(good.data(), job.ids.size()));
    }
    return good.take();
  }

  std::vector<LayerMemory> layers_of(nb::sequence from) {
    std::vector<LayerMemory> layers;
    for (nb::handle one : from) {
      auto [memory, count, stride, pieces, piece_bytes] =
          nb::cast<std::tuple<nb::object, std::uint64_t, std::uint64_t, std::vector<std::uint64_t>,
                              std::uint64_t>>(one);
      const Buffer& buffer = memory_.emplace_back(memory, true);
      layers.push_back({{reinterpret_cast<std::byte*>(buffer.bytes()), buffer.size()},
                        count,
                        stride,
                        std::move(pieces),
                        piece_bytes});
    }
    return layers;
  }

  std::vector<Buffer> memory_;
  PackedBlocks blocks_;
};

}  // namespace

void bind_packed(nb::module_& m) {
  nb::class_<LayerGate>(m, "LayerGate")
      .def(nb::init<>())
      .def("advance", &LayerGate::advance, "layers"_a)
      .def("open", &LayerGate::open)
      .def("wait_for", &LayerGate::wait_for, "layer"_a, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<PyPackedBlocks>(m, "PackedBlocks")
      .def(nb::init<nb::sequence>(), "layers"_a)
      .def_prop_ro("object_bytes", &PyPackedBlocks::object_bytes)
      .def("unpack", &PyPackedBlocks::unpack, "block_ids"_a, "objects"_a, "crcs"_a)
      .def("unpack_layers", &PyPackedBlocks::unpack_layers, "block_ids"_a, "objects"_a, "crcs"_a,
           "gate"_a)
      .def("pack", &PyPackedBlocks::pack, "layer"_a, "block_ids"_a, "objects"_a);
}

}  // namespace moonpool
