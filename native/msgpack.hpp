// Reads msgpack in place, as far as KV events need it. Whatever does not fit throws BadMessage:
// lengths are checked before anything is allocated, nesting is bounded.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>

namespace moonpool {

struct BadMessage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class MsgpackReader {
 public:
  explicit MsgpackReader(std::string_view bytes)
      : at_(reinterpret_cast<const std::uint8_t*>(bytes.data())), end_(at_ + bytes.size()) {}

  bool done() const { return at_ == end_; }
  // What lies between here and a later place in the same message.
  std::string_view until(const MsgpackReader& later) const {
    return {reinterpret_cast<const char*>(at_), static_cast<std::size_t>(later.at_ - at_)};
  }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  bool is_array() const { return kind(0x90, 0xf0, 0xdc, 0xdd); }
  bool is_map() const { return kind(0x80, 0xf0, 0xde, 0xdf); }
  bool is_bin() const { return peek() >= 0xc4 && peek() <= 0xc6; }
  bool is_text() const { return (peek() & 0xe0) == 0xa0 || (peek() >= 0xd9 && peek() <= 0xdb); }
  bool is_integer() const;

  bool take_nil();          // true when there was one
  std::uint32_t array();    // its length
  std::uint32_t map();      // pairs
  std::string_view text();  // of str or bin
  std::uint64_t integer();  // negative ones as two's complement
  // One written with eight bytes, as names of blocks are; false: something else comes.
  bool take_u64(std::uint64_t& value) {
    if (left() < 9 || *at_ != 0xcf) return false;
    std::memcpy(&value, at_ + 1, sizeof value);
    value = __builtin_bswap64(value);
    at_ += 9;
    return true;
  }
  // u32 each; `out` has `count` places.
  void tokens(std::uint32_t* out, std::uint32_t count);
  void skip();  // one value with all that is in it

 private:
  static constexpr int kNestedMax = 32;

  std::uint8_t peek() const {
    if (at_ == end_) throw BadMessage("the message ends too early");
    return *at_;
  }
  bool kind(std::uint8_t fixed, std::uint8_t mask, std::uint8_t first, std::uint8_t last) const {
    return (peek() & mask) == fixed || (peek() >= first && peek() <= last);
  }
  void need(std::size_t bytes) const {
    if (left() < bytes) throw BadMessage("the message ends too early");
  }
  std::uint64_t big_endian(int bytes);
  std::uint32_t length(std::uint8_t fixed, std::uint8_t mask, std::uint8_t first, const char* what);
  void skip(int nested);

  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace moonpool
