// Batches of keys as they cross between Python and messages: one blob, and where each key ends.
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "bind.hpp"
#include "column_args.hpp"
#include "segment_agent.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

constexpr std::size_t kBlobBytesMax = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kKeyBytesMax = 1024;

std::string_view view_of(PyObject* bytes) {
  return {PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes))};
}

/// The bytes of a key; empty when it is none: another type, too long, text that is not Unicode.
std::string_view key_of(PyObject* key) {
  std::string_view bytes;
  if (PyBytes_CheckExact(key)) {
    bytes = view_of(key);
  } else if (PyUnicode_CheckExact(key)) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key, &size);
    if (text == nullptr) {
      PyErr_Clear();
    } else {
      bytes = {text, static_cast<std::size_t>(size)};
    }
  }
  return bytes.size() <= kKeyBytesMax ? bytes : std::string_view{};
}

nb::object new_bytes(const char* from, std::size_t size) {
  nb::object made = nb::steal(PyBytes_FromStringAndSize(from, static_cast<Py_ssize_t>(size)));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

/// (blob, ends). The views point into objects that live: no Python code runs meanwhile.
nb::tuple join(const std::vector<std::string_view>& keys, std::size_t total) {
  nb::object blob = new_bytes(nullptr, total);
  nb::object ends = new_bytes(nullptr, keys.size() * sizeof(std::uint32_t));
  char* to = PyBytes_AS_STRING(blob.ptr());
  char* end = PyBytes_AS_STRING(ends.ptr());
  std::uint32_t at = 0;
  for (const std::string_view key : keys) {
    std::memcpy(to + at, key.data(), key.size());
    at += static_cast<std::uint32_t>(key.size());
    std::memcpy(end, &at, sizeof at);
    end += sizeof at;
  }
  return nb::make_tuple(blob, ends);
}

nb::tuple join_keys(const nb::list& keys) {
  std::vector<std::string_view> views;
  views.reserve(keys.size());
  std::size_t total = 0;
  for (const nb::handle key : keys) {
    if (!PyBytes_Check(key.ptr())) throw nb::type_error("a key of a batch is not bytes");
    total += views.emplace_back(view_of(key.ptr())).size();
  }
  if (total > kBlobBytesMax) {
    throw std::invalid_argument("a batch's keys are longer than 4 GiB together");
  }
  return join(views, total);
}

nb::object encode_keys(const nb::list& keys) {
  nb::list encoded;
  for (const nb::handle key : keys) {
    const std::string_view bytes = key_of(key.ptr());
    if (bytes.empty()) return nb::none();
    if (PyBytes_CheckExact(key.ptr())) {
      encoded.append(key);
    } else {
      encoded.append(new_bytes(bytes.data(), bytes.size()));
    }
  }
  return encoded;
}

nb::tuple claim_records(const nb::list& keys, nb::handle sizes, nb::handle sequences,
                        std::uint64_t term, std::uint8_t replicas, std::int64_t expiry_ms,
                        std::uint32_t tenant, std::uint8_t pin) {
  const ColumnArg<std::uint64_t> size(sizes, "sizes"), sequence(sequences, "sequences");
  std::vector<std::string_view> views;
  views.reserve(keys.size());
  for (const nb::handle key : keys) {
    const bool fits = PyBytes_Check(key.ptr());
    if (!fits || views.emplace_back(view_of(key.ptr())).size() > kKeyBytesMax) {
      throw std::invalid_argument("a key is bytes, at most 1024 of them");
    }
  }
  if (size.size() != views.size() || sequence.size() != views.size()) {
    throw std::invalid_argument("columns differ in length");
  }
  nb::object records = new_bytes(nullptr, views.size() * sizeof(ClaimRecord));
  char* to = PyBytes_AS_STRING(records.ptr());
  std::size_t total = 0;
  for (std::size_t i = 0; i < views.size(); i++) {
    const ClaimRecord record{.size = size.data()[i],
                             .term = term,
                             .seq = sequence.data()[i],
                             .expiry_ms = expiry_ms,
                             .tenant = tenant,
                             .key_len = static_cast<std::uint16_t>(views[i].size()),
                             .parent_len = 0,
                             .replicas = replicas,
                             .pin = pin,
                             .flags = 0,
                             .last_used = 0};
    std::memcpy(to + i * sizeof(record), &record, sizeof(record));
    total += views[i].size();
  }
  nb::object blob = new_bytes(nullptr, total);
  char* text = PyBytes_AS_STRING(blob.ptr());
  for (const std::string_view key : views) {
    std::memcpy(text, key.data(), key.size());
    text += key.size();
  }
  return nb::make_tuple(records, blob);
}

nb::object pack_keys(const nb::list& keys) {
  std::vector<std::string_view> views;
  views.reserve(keys.size());
  std::size_t total = 0;
  for (const nb::handle key : keys) {
    total += views.emplace_back(key_of(key.ptr())).size();
    if (views.back().empty() || total > kBlobBytesMax) return nb::none();
  }
  return join(views, total);
}

}  // namespace

void bind_keys(nb::module_& m) {
  m.def("encode_keys", encode_keys, "keys"_a,
        "str and bytes as a list of bytes; None when one is no key of 1 to 1024 bytes.");
  m.def("join_keys", join_keys, "keys"_a,
        "The keys back to back, and the end of each in there as u32, both as bytes.");
  m.def("claim_records", claim_records, "keys"_a, "sizes"_a, "sequences"_a, nb::kw_only(), "term"_a,
        "replicas"_a, "expiry_ms"_a, "tenant"_a, "pin"_a,
        "The claims of keys without parents: 48-byte records, and the keys back to back.");
  m.def("pack_keys", pack_keys, "keys"_a,
        "As join_keys, of str and bytes; None when one is no key of 1 to 1024 bytes.");
}
}  // namespace moonpool
