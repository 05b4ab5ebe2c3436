#include "put_batch.hpp"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include "column_args.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

constexpr std::size_t kKeyBytesMax = 1024;

std::string_view key_bytes(nb::handle key) {
  if (!PyBytes_Check(key.ptr())) throw nb::type_error("a key of a batch is not bytes");
  std::string_view bytes{PyBytes_AS_STRING(key.ptr()),
                         static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr()))};
  if (bytes.size() > kKeyBytesMax) throw std::invalid_argument("a key has at most 1024 bytes");
  return bytes;
}

void check_length(const char* name, std::size_t got, std::size_t expected) {
  if (got == expected) return;
  throw std::invalid_argument(std::to_string(got) + " " + name + " for " +
                              std::to_string(expected) + " keys");
}

nb::tuple claims(PutBatch& self, std::uint64_t term, nb::handle sequences) {
  const auto records = self.numbered(term, ColumnArg<std::uint64_t>(sequences, "sequences"));
  return nb::make_tuple(nb::bytes(records.data(), records.size()),
                        nb::bytes(self.blob().data(), self.blob().size()));
}

}  // namespace

PutBatch::PutBatch(const nb::list& keys, const nb::list& sources, nb::handle sizes,
                   nb::handle parents, std::uint8_t replicas, std::int64_t expiry_ms,
                   std::uint32_t tenant, std::uint8_t pin) {
  const std::size_t count = keys.size();
  check_length("sources", sources.size(), count);
  const ColumnArg<std::uint64_t> size(sizes, "sizes");
  check_length("sizes", size.size(), count);
  const bool family = !parents.is_none();
  nb::list above;
  if (family) {
    above = nb::cast<nb::list>(parents);
    check_length("parents", above.size(), count);
  }
  sources_.reserve(count);
  records_.reserve(count);
  blob_.reserve(count * 64);
  for (std::size_t i = 0; i < count; i++) {
    const std::string_view key = key_bytes(keys[i]);
    const std::string_view parent = family ? key_bytes(above[i]) : std::string_view{};
    blob_.insert(blob_.end(), key.begin(), key.end());
    blob_.insert(blob_.end(), parent.begin(), parent.end());
    const Buffer& source = sources_.emplace_back(sources[i]);
    if (source.size() != size.data()[i]) {
      throw std::invalid_argument("value " + std::to_string(i) + " was of " +
                                  std::to_string(size.data()[i]) + " bytes when it was put, now " +
                                  std::to_string(source.size()));
    }
    records_.push_back({.size = source.size(),
                        .term = 0,
                        .seq = 0,
                        .expiry_ms = expiry_ms,
                        .tenant = tenant,
                        .key_len = static_cast<std::uint16_t>(key.size()),
                        .parent_len = static_cast<std::uint16_t>(parent.size()),
                        .replicas = replicas,
                        .pin = pin,
                        .flags = 0,
                        .last_used = 0});
  }
}

std::span<const std::uint8_t> PutBatch::numbered(std::uint64_t term,
                                                 std::span<const std::uint64_t> sequences) {
  check_length("sequences", sequences.size(), records_.size());
  for (std::size_t i = 0; i < records_.size(); i++) {
    records_[i].term = term;
    records_[i].seq = sequences[i];
  }
  return {reinterpret_cast<const std::uint8_t*>(records_.data()),
          records_.size() * sizeof(ClaimRecord)};
}

void bind_put_batch(nb::module_& m) {
  nb::class_<PutBatch>(m, "PutBatch")
      .def(nb::init<const nb::list&, const nb::list&, nb::handle, nb::handle, std::uint8_t,
                    std::int64_t, std::uint32_t, std::uint8_t>(),
           "keys"_a, "sources"_a, "sizes"_a, "parents"_a.none(), "replicas"_a, "expiry_ms"_a,
           "tenant"_a, "pin"_a)
      .def("__len__", &PutBatch::size)
      .def("claims", claims, "term"_a, "sequences"_a);
}

}  // namespace moonpool
