#include "msgpack.hpp"

#include <array>
#include <cstring>
#include <string>

namespace moonpool {
namespace {

// Bytes of a number, nil, true or false by its first byte; 0: something else.
constexpr std::array<std::uint8_t, 256> kScalarBytes = [] {
  std::array<std::uint8_t, 256> bytes{};
  for (int i = 0; i < 0x80; i++) bytes[i] = 1;
  for (int i = 0xe0; i < 0x100; i++) bytes[i] = 1;
  for (const int i : {0xc0, 0xc2, 0xc3}) bytes[i] = 1;
  for (int i = 0; i < 4; i++)
    bytes[0xcc + i] = bytes[0xd0 + i] = static_cast<std::uint8_t>(1 + (1 << i));
  bytes[0xca] = 5;
  bytes[0xcb] = 9;
  return bytes;
}();

// How an integer without a sign of at most 32 bits is cut out of the eight bytes, read as one
// big-endian number, that begin with its first: its bytes, then how far to shift left and right, 8
// bits each. 0: something else.
constexpr std::uint32_t token_cut(std::uint32_t bytes, std::uint32_t left, std::uint32_t right) {
  return bytes | left << 8 | right << 16;
}

constexpr std::array<std::uint32_t, 256> kTokenCuts = [] {
  std::array<std::uint32_t, 256> cuts{};
  for (int i = 0; i < 0x80; i++) cuts[i] = token_cut(1, 0, 56);
  cuts[0xcc] = token_cut(2, 8, 56);
  cuts[0xcd] = token_cut(3, 8, 48);
  cuts[0xce] = token_cut(5, 8, 32);
  return cuts;
}();

// The first of eight bytes stands low, as on every machine the core is built for.
std::uint64_t word_at(const std::uint8_t* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

constexpr std::size_t kPairBytes = 16;  // two ids and what is read with them

// The id of three or five bytes that a word begins with; `wide`: 0 or 2, what its first byte says.
std::uint32_t cut_id(std::uint64_t word, std::uint64_t wide) {
  return static_cast<std::uint32_t>(__builtin_bswap64(word) << 8 >> (48 - 8 * wide));
}

}  // namespace

std::uint64_t MsgpackReader::big_endian(int bytes) {
  if (left() >= sizeof(std::uint64_t)) {
    const std::uint64_t value = __builtin_bswap64(word_at(at_)) >> (64 - 8 * bytes);
    at_ += bytes;
    return value;
  }
  need(static_cast<std::size_t>(bytes));
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; i++) value = value << 8 | *at_++;
  return value;
}

bool MsgpackReader::is_integer() const {
  const std::uint8_t byte = peek();
  return byte < 0x80 || byte >= 0xe0 || (byte >= 0xcc && byte <= 0xd3);
}

bool MsgpackReader::take_nil() {
  if (peek() != 0xc0) return false;
  at_++;
  return true;
}

// A length written into the type byte, or after it in 2 << n bytes.
std::uint32_t MsgpackReader::length(std::uint8_t fixed, std::uint8_t mask, std::uint8_t first,
                                    const char* what) {
  const std::uint8_t byte = peek();
  if ((byte & mask) == fixed) {
    at_++;
    return byte & static_cast<std::uint8_t>(~mask);
  }
  if (byte != first && byte != first + 1) throw BadMessage(std::string("no ") + what);
  at_++;
  const auto count = static_cast<std::uint32_t>(big_endian(byte == first ? 2 : 4));
  if (count > left()) throw BadMessage("a length beyond the message");
  return count;
}

std::uint32_t MsgpackReader::array() { return length(0x90, 0xf0, 0xdc, "array"); }

std::uint32_t MsgpackReader::map() { return length(0x80, 0xf0, 0xde, "map"); }

std::string_view MsgpackReader::text() {
  const std::uint8_t byte = peek();
  std::uint64_t size;
  if ((byte & 0xe0) == 0xa0) {
    at_++;
    size = byte & 0x1f;
  } else if ((byte >= 0xd9 && byte <= 0xdb) || (byte >= 0xc4 && byte <= 0xc6)) {
    at_++;
    size = big_endian(1 << (byte >= 0xd9 ? byte - 0xd9 : byte - 0xc4));
  } else {
    throw BadMessage("no text");
  }
  need(size);
  const std::string_view found(reinterpret_cast<const char*>(at_), size);
  at_ += size;
  return found;
}

std::uint64_t MsgpackReader::integer() {
  const std::uint8_t byte = peek();
  at_++;
  if (byte < 0x80) return byte;
  if (byte >= 0xe0) return static_cast<std::uint64_t>(std::int64_t{static_cast<std::int8_t>(byte)});
  if (byte >= 0xcc && byte <= 0xcf) return big_endian(1 << (byte - 0xcc));
  switch (byte) {
    case 0xd0:
      return static_cast<std::uint64_t>(std::int64_t{static_cast<std::int8_t>(big_endian(1))});
    case 0xd1:
      return static_cast<std::uint64_t>(std::int64_t{static_cast<std::int16_t>(big_endian(2))});
    case 0xd2:
      return static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(big_endian(4))});
    case 0xd3:
      return big_endian(8);
    default:
      throw BadMessage("no integer");
  }
}

void MsgpackReader::tokens(std::uint32_t* out, std::uint32_t count) {
  // Ids of large vocabularies take three (0xcd) or five bytes (0xce) at random, which no branch
  // predictor foresees: where the next one begins is computed. Two at a time, the second one's
  // first byte out of the word that the first was in, since each load on that way costs as much as
  // both.
  std::uint32_t i = 0;
  const std::uint8_t* at = at_;
  while (i < count && static_cast<std::size_t>(end_ - at) >= kPairBytes) {
    const std::uint64_t word = word_at(at);
    const std::uint64_t wide = word & 2;
    const std::uint64_t rest = word >> (24 + 8 * wide);
    const auto kinds = ((word & 0xff) - 0xcd) | ((rest & 0xff) - 0xcd);
    if (kinds <= 1 && count - i >= 2) {
      const std::uint64_t second_wide = rest & 2;
      out[i] = cut_id(word, wide);
      out[i + 1] = cut_id(word_at(at + 3 + wide), second_wide);
      at += 6 + wide + second_wide;
      i += 2;
    } else {
      const std::uint32_t cut = kTokenCuts[*at];
      if (cut == 0) break;
      out[i] =
          static_cast<std::uint32_t>(__builtin_bswap64(word) << (cut >> 8 & 63) >> (cut >> 16));
      at += cut & 7;
      i++;
    }
  }
  at_ = at;
  for (; i < count; i++) {
    const std::uint64_t value = integer();
    if (value > 0xffffffff) throw BadMessage("a token id above 32 bits");
    out[i] = static_cast<std::uint32_t>(value);
  }
}

void MsgpackReader::skip() { skip(0); }

void MsgpackReader::skip(int nested) {
  if (nested > kNestedMax) throw BadMessage("nested too deep");
  const std::uint8_t size = kScalarBytes[peek()];
  if (size != 0) {
    need(size);
    at_ += size;
  } else if (is_text() || is_bin()) {
    text();
  } else if (is_array()) {
    for (std::uint32_t rest = array(); rest > 0; rest--) {
      const std::uint8_t each = kScalarBytes[peek()];
      if (each != 0 && each <= left()) {
        at_ += each;
      } else {
        skip(nested + 1);
      }
    }
  } else if (is_map()) {
    for (std::uint64_t rest = 2 * std::uint64_t{map()}; rest > 0; rest--) skip(nested + 1);
  } else {
    throw BadMessage("a type that no event has");
  }
}

}  // namespace moonpool
