// The hello: who speaks, in which version, and the proof that both know the token.
//
//   client  kHello      version (in every header), epoch, nonce
//   server  kChallenge  epoch, nonce                           | kRefused with a text
//   client  kProof      HMAC(token, "client" ...)
//   server  kWelcome    HMAC(token, "server" ...), directory   | kRefused with a text
//
// The client proves first, so that a stranger gets nothing computed with the token.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "frame.hpp"
#include "region.hpp"

namespace moonpool {

using Mac = std::array<std::uint8_t, 32>;  // HMAC-SHA256

wire::Id16 random_id();
std::uint64_t random_epoch();

// `role` is "client" or "server": a proof cannot be sent back as the other side's.
Mac prove(const std::string& token, const char* role, const wire::Hello& client,
          const wire::Hello& server);
bool same_mac(const Mac& a, const std::uint8_t* b);

struct RegionOffer {
  std::uint64_t id;
  std::uint64_t size;
  bool writable;
  bool shared;
  std::string name;
};

struct SegmentOffer {
  wire::Id16 incarnation;
  std::uint64_t capacity_bytes;
  std::string path;
};

// A further token that opens an endpoint: for the objects of one tenant, and nothing else.
struct TenantToken {
  std::uint32_t tenant;
  std::string token;
};

// What an endpoint offers.
struct Directory {
  std::vector<RegionOffer> regions;
  std::vector<SegmentOffer> segments;
};

std::vector<std::uint8_t> encode_directory(const Directory& directory);
// False when the bytes are not a directory.
bool decode_directory(std::span<const std::uint8_t> bytes, Directory* directory);

// A frame without payload or trailer.
std::vector<std::uint8_t> hello_frame(wire::Type type, const void* meta, std::size_t size);

struct Welcome {
  std::uint64_t peer_epoch = 0;
  wire::Id16 nonce{};  // ours: the connection's name at the peer
  Directory directory;
};

// The peer said no (wrong token, wrong version, not the same user); its text is what().
struct RefusedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs the client's side on a fresh socket, blocking until the deadline.
// Throws RefusedError, or std::system_error when the peer is gone, silent or speaks something else.
Welcome say_hello(int fd, const std::string& token, std::uint64_t epoch, std::int64_t deadline_ns,
                  std::uint32_t meta_bytes_max);

}  // namespace moonpool
