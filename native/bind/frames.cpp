// Frames of the control plane, the usual ones in one step: what a header begins with is the
// caller's, length and checksum of the payload are added or looked at here.
#include <cstdint>
#include <cstring>
#include <span>

#include "bind.hpp"
#include "buffer.hpp"
#include "copy.hpp"
#include "crc.hpp"
#include "without_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

constexpr std::size_t kStart = 8;    // of a header: magic, version, kind, flags
constexpr std::size_t kHeader = 16;  // then length and CRC-32C of the payload, little-endian

void put_number(unsigned char* to, std::uint32_t value) {
  for (int i = 0; i < 4; i++) to[i] = static_cast<unsigned char>(value >> (8 * i));
}

std::uint32_t number_at(const unsigned char* from) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; i++) value |= std::uint32_t{from[i]} << (8 * i);
  return value;
}

nb::bytes frame_of(const nb::bytes& start, const nb::bytes& payload) {
  const std::size_t size = payload.size();
  if (start.size() != kStart || size > UINT32_MAX) {
    throw nb::value_error("a header starts with 8 bytes, and a payload has at most 2^32 - 1");
  }
  PyObject* frame = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(kHeader + size));
  if (frame == nullptr) throw nb::python_error();
  auto* to = reinterpret_cast<unsigned char*>(PyBytes_AS_STRING(frame));
  std::memcpy(to, start.c_str(), kStart);
  put_number(to + kStart, static_cast<std::uint32_t>(size));
  const char* from = payload.c_str();
  const std::uint32_t sum =
      without_gil(size, [&] { return copy_crc32c(to + kHeader, from, size); });
  put_number(to + kStart + 4, sum);
  return nb::steal<nb::bytes>(frame);
}

nb::object payload_of(const nb::bytes& start, nb::handle buffer, std::size_t received,
                      std::size_t payload_max) {
  const Buffer held(buffer);
  const unsigned char* from = held.bytes();
  if (start.size() != kStart || received > held.size() || received < kHeader) return nb::none();
  const std::size_t size = received - kHeader;
  if (std::memcmp(from, start.c_str(), kStart) != 0 || number_at(from + kStart) != size ||
      size > payload_max) {
    return nb::none();
  }
  const std::uint32_t sum = without_gil(size, [&] { return crc32c(from + kHeader, size); });
  if (sum != number_at(from + kStart + 4)) return nb::none();
  return nb::bytes(from + kHeader, size);
}

}  // namespace

void bind_frames(nb::module_& m) {
  m.def("frame_of", frame_of, "start"_a, "payload"_a);
  m.def("payload_of", payload_of, "start"_a, "buffer"_a, "received"_a, "payload_max"_a);
}

}  // namespace moonpool
