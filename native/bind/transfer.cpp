// Block lists and block copies between mapped memory, for the transfer engine.
#include <nanobind/nanobind.h>

#include <optional>
#include <stdexcept>

#include "bind.hpp"
#include "block_copy.hpp"
#include "block_ids.hpp"
#include "block_ranges.hpp"
#include "buffer.hpp"
#include "cache_lines.hpp"
#include "column_args.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

Range range_of(const Buffer& buffer) {
  return {reinterpret_cast<std::byte*>(buffer.bytes()), buffer.size()};
}

// Holds both buffers until it has run, so that neither can be unmapped under a running copy.
class PyBlockCopy {
 public:
  PyBlockCopy(nb::handle dst, nb::handle dst_offsets, nb::handle src, nb::handle src_offsets,
              nb::handle lengths, bool checksum)
      : dst_(std::in_place, dst, true),
        src_(std::in_place, src),
        copy_(range_of(*dst_), ColumnArg<std::uint64_t>(dst_offsets, "dst_offsets"),
              range_of(*src_), ColumnArg<std::uint64_t>(src_offsets, "src_offsets"),
              ColumnArg<std::uint64_t>(lengths, "lengths"), checksum) {}

  int run(std::int64_t deadline_ns) {
    Status outcome = Status::kInternal;
    if (!dst_) throw std::invalid_argument("a block copy runs once");
    {
      nb::gil_scoped_release release;
      outcome = copy_.run(deadline_ns);
    }
    dst_.reset();
    src_.reset();
    return static_cast<int>(outcome);
  }
  void cancel() { copy_.cancel(); }
  Array<std::uint8_t> status() const { return to_array(copy_.status()); }
  Array<std::uint32_t> crc() const { return to_array(copy_.crc()); }

 private:
  std::optional<Buffer> dst_;
  std::optional<Buffer> src_;
  BlockCopy copy_;
};

// The usual case only, fast: None for everything else, whose reason Python words.
nb::object block_offsets_of(nb::handle from, std::uint64_t count, std::uint64_t stride,
                            std::uint64_t offset) {
  nb::object offsets = nb::none();
  with_block_ids(from, [&](auto ids) {
    ColumnOut<std::uint64_t> out(ids.size());
    if (block_offsets(ids, count, stride, offset, out.data())) offsets = nb::cast(out.take());
  });
  return offsets;
}

nb::object ranges_inside_of(nb::handle offsets, nb::handle lengths, std::uint64_t nbytes) {
  const ColumnArg<std::uint64_t> starts(offsets, "offsets");
  const ColumnArg<std::uint64_t> sizes(lengths, "lengths");
  if (starts.size() != sizes.size()) return nb::none();
  const auto total = ranges_inside(starts, sizes, nbytes);
  return total ? nb::cast(*total) : nb::none();
}

using LineStep = std::uint64_t (*)(Range, std::span<const std::uint64_t>,
                                   std::span<const std::uint64_t>);

template <LineStep kStep>
std::uint64_t lines_of(nb::handle memory, nb::handle offsets, nb::handle lengths) {
  const Buffer buffer(memory);
  const ColumnArg<std::uint64_t> starts(offsets, "offsets");
  const ColumnArg<std::uint64_t> sizes(lengths, "lengths");
  nb::gil_scoped_release release;
  return kStep(range_of(buffer), starts, sizes);
}

}  // namespace

void bind_transfer(nb::module_& m) {
  m.def("block_offsets", block_offsets_of, "ids"_a, "count"_a, "stride"_a, "offset"_a);
  m.def("ranges_inside", ranges_inside_of, "offsets"_a, "lengths"_a, "nbytes"_a);
  m.def("cache_line_bytes", cache_line_bytes);
  m.def("write_back", lines_of<write_back>, "memory"_a, "offsets"_a, "lengths"_a);
  m.def("invalidate", lines_of<invalidate>, "memory"_a, "offsets"_a, "lengths"_a);
  nb::class_<PyBlockCopy>(m, "BlockCopy")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, bool>(), "dst"_a,
           "dst_offsets"_a, "src"_a, "src_offsets"_a, "lengths"_a, "checksum"_a)
      .def("run", &PyBlockCopy::run, "deadline_ns"_a)
      .def("cancel", &PyBlockCopy::cancel)
      .def("status", &PyBlockCopy::status)
      .def("crc", &PyBlockCopy::crc);
}

}  // namespace moonpool
