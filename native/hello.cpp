#include "hello.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "sha256.hpp"

namespace moonpool {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

void random_bytes(void* to, std::size_t size) {
  if (::getrandom(to, size, 0) != static_cast<ssize_t>(size)) fail(errno, "no random bytes");
}

void append_bytes(std::vector<std::uint8_t>& bytes, const void* from, std::size_t size) {
  std::size_t at = bytes.size();
  bytes.resize(at + size);
  if (size > 0) std::memcpy(bytes.data() + at, from, size);
}

template <class T>
void append(std::vector<std::uint8_t>& bytes, const T& value) {
  append_bytes(bytes, &value, sizeof(T));
}

void append_text(std::vector<std::uint8_t>& bytes, const std::string& text) {
  append(bytes, static_cast<std::uint16_t>(text.size()));
  append_bytes(bytes, text.data(), text.size());
}

// Reads values off the front of a span; `ok` falls to false at the first that does not fit.
struct Parser {
  std::span<const std::uint8_t> left;
  bool ok = true;

  template <class T>
  T take() {
    if (left.size() < sizeof(T)) {
      ok = false;
      return T{};
    }
    T value = wire::load<T>(left.data());
    left = left.subspan(sizeof(T));
    return value;
  }

  std::string take_text() {
    auto size = take<std::uint16_t>();
    if (left.size() < size) ok = false;
    if (!ok) return {};
    std::string text(reinterpret_cast<const char*>(left.data()), size);
    left = left.subspan(size);
    return text;
  }
};

void wait_for(int fd, short events, std::int64_t deadline_ns) {
  pollfd waiting{fd, events, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, left_ms(deadline_ns));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) fail(ETIMEDOUT, "the peer did not answer the hello in time");
}

void send_all(int fd, const std::vector<std::uint8_t>& bytes, std::int64_t deadline_ns) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      wait_for(fd, POLLOUT, deadline_ns);
    } else if (errno != EINTR) {
      fail(errno, "the peer ended the connection during the hello");
    }
  }
}

void receive_all(int fd, void* to, std::size_t size, std::int64_t deadline_ns) {
  std::size_t got = 0;
  while (got < size) {
    ssize_t n = ::recv(fd, static_cast<char*>(to) + got, size - got, MSG_DONTWAIT);
    if (n > 0) {
      got += static_cast<std::size_t>(n);
    } else if (n == 0) {
      fail(ECONNRESET, "the peer closed the connection during the hello");
    } else if (errno == EAGAIN) {
      wait_for(fd, POLLIN, deadline_ns);
    } else if (errno != EINTR) {
      fail(errno, "the peer ended the connection during the hello");
    }
  }
}

// The next frame's meta; a refusal becomes RefusedError.
std::vector<std::uint8_t> receive_frame(int fd, wire::Type expected, std::int64_t deadline_ns,
                                        std::uint32_t meta_bytes_max) {
  wire::Header header;
  receive_all(fd, &header, sizeof(header), deadline_ns);
  if (header.magic != wire::kMagic) fail(EPROTO, "the peer is no Moonpool endpoint");
  auto type = wire::Type{header.type};
  if (header.version != wire::kVersion && type != wire::Type::kRefused) {
    throw RefusedError("the peer speaks protocol version " + std::to_string(header.version) +
                       ", this endpoint speaks " + std::to_string(wire::kVersion));
  }
  if (!wire::signature_ok(header) || header.meta_bytes > meta_bytes_max ||
      (type != expected && type != wire::Type::kRefused)) {
    fail(EPROTO, "the peer answered the hello with a damaged or unexpected frame");
  }
  std::vector<std::uint8_t> meta(header.meta_bytes);
  receive_all(fd, meta.data(), meta.size(), deadline_ns);
  if (crc32c(meta.data(), meta.size()) != header.meta_crc) {
    fail(EPROTO, "the peer answered the hello with a damaged frame");
  }
  if (type == wire::Type::kRefused) throw RefusedError(std::string(meta.begin(), meta.end()));
  return meta;
}

}  // namespace

wire::Id16 random_id() {
  wire::Id16 id;
  random_bytes(id.data(), id.size());
  return id;
}

std::uint64_t random_epoch() {
  std::uint64_t epoch = 0;
  random_bytes(&epoch, sizeof(epoch));
  return epoch;
}

Mac prove(const std::string& token, const char* role, const wire::Hello& client,
          const wire::Hello& server) {
  std::string label = std::string("moonpool hello 1 ") + role;
  std::vector<std::uint8_t> text;
  append_bytes(text, label.data(), label.size());
  append(text, client);
  append(text, server);
  return hmac_sha256(token.data(), token.size(), text.data(), text.size());
}

bool same_mac(const Mac& a, const std::uint8_t* b) {
  unsigned difference = 0;  // no early end: the time tells nothing about where they differ
  for (std::size_t i = 0; i < a.size(); i++) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

std::vector<std::uint8_t> encode_directory(const Directory& directory) {
  std::vector<std::uint8_t> bytes;
  append(bytes, static_cast<std::uint32_t>(directory.regions.size()));
  append(bytes, static_cast<std::uint32_t>(directory.segments.size()));
  for (const RegionOffer& region : directory.regions) {
    append(bytes, region.id);
    append(bytes, region.size);
    append(bytes, static_cast<std::uint16_t>((region.writable ? 1 : 0) | (region.shared ? 2 : 0)));
    append_text(bytes, region.name);
  }
  for (const SegmentOffer& segment : directory.segments) {
    append(bytes, segment.incarnation);
    append(bytes, segment.capacity_bytes);
    append_text(bytes, segment.path);
  }
  return bytes;
}

bool decode_directory(std::span<const std::uint8_t> bytes, Directory* directory) {
  Parser parser{bytes};
  auto regions = parser.take<std::uint32_t>();
  auto segments = parser.take<std::uint32_t>();
  for (std::uint32_t i = 0; parser.ok && i < regions; i++) {
    RegionOffer region;
    region.id = parser.take<std::uint64_t>();
    region.size = parser.take<std::uint64_t>();
    auto flags = parser.take<std::uint16_t>();
    region.writable = flags & 1;
    region.shared = flags & 2;
    region.name = parser.take_text();
    directory->regions.push_back(std::move(region));
  }
  for (std::uint32_t i = 0; parser.ok && i < segments; i++) {
    SegmentOffer segment;
    segment.incarnation = parser.take<wire::Id16>();
    segment.capacity_bytes = parser.take<std::uint64_t>();
    segment.path = parser.take_text();
    directory->segments.push_back(std::move(segment));
  }
  return parser.ok && parser.left.empty();
}

std::vector<std::uint8_t> hello_frame(wire::Type type, const void* meta, std::size_t size) {
  wire::Header header;
  header.type = static_cast<std::uint8_t>(type);
  wire::sign(header, meta, size);
  std::vector<std::uint8_t> bytes;
  append(bytes, header);
  append_bytes(bytes, meta, size);
  return bytes;
}

Welcome say_hello(int fd, const std::string& token, std::uint64_t epoch, std::int64_t deadline_ns,
                  std::uint32_t meta_bytes_max) {
  wire::Hello client{epoch, random_id()};
  send_all(fd, hello_frame(wire::Type::kHello, &client, sizeof(client)), deadline_ns);
  auto challenge = receive_frame(fd, wire::Type::kChallenge, deadline_ns, meta_bytes_max);
  if (challenge.size() != sizeof(wire::Hello)) fail(EPROTO, "the peer sent no proper challenge");
  auto server = wire::load<wire::Hello>(challenge.data());
  Mac proof = prove(token, "client", client, server);
  send_all(fd, hello_frame(wire::Type::kProof, proof.data(), proof.size()), deadline_ns);
  auto answer = receive_frame(fd, wire::Type::kWelcome, deadline_ns, meta_bytes_max);
  Welcome welcome;
  welcome.peer_epoch = server.epoch;
  welcome.nonce = client.nonce;
  if (answer.size() < sizeof(Mac) ||
      !same_mac(prove(token, "server", client, server), answer.data())) {
    throw RefusedError("the peer could not prove that it knows the token");
  }
  if (!decode_directory(std::span(answer).subspan(sizeof(Mac)), &welcome.directory)) {
    fail(EPROTO, "the peer sent a damaged directory");
  }
  return welcome;
}

}  // namespace moonpool
