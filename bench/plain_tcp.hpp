// The least a TCP read can cost: two processes, one blocking connection, one frame each way. The
// server gathers the asked blocks straight from memory, the client receives them straight into
// place, a trailer carries their CRC-32C. No ids, no deadlines, no token: a limit, not a transport.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "crc.hpp"

namespace plain {

struct Block {
  std::uint64_t offset;
  std::uint64_t size;
};

struct Request {
  std::uint32_t count;
  std::uint32_t with_crc;
};

constexpr std::uint32_t kBlocksMax = 1024;
// A piece is checked right before it leaves and right after it came, while it is in the cache.
constexpr std::size_t kPiece = 512 << 10;

[[noreturn]] inline void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

// False when the peer has closed at a frame's border.
inline bool receive(int fd, void* to, std::size_t size) {
  auto p = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = ::recv(fd, p, size, 0);
    if (got == 0) return false;
    if (got < 0) die("recv");
    p += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

inline void send_gathered(int fd, std::vector<iovec>& parts, int flags) {
  std::size_t at = 0;
  while (at < parts.size()) {
    msghdr message{};
    message.msg_iov = parts.data() + at;
    message.msg_iovlen = std::min<std::size_t>(parts.size() - at, 512);
    const bool all = at + message.msg_iovlen == parts.size();
    const ssize_t result = ::sendmsg(fd, &message, (all ? flags : MSG_MORE) | MSG_NOSIGNAL);
    if (result < 0) die("sendmsg");
    auto sent = static_cast<std::size_t>(result);
    while (at < parts.size() && sent >= parts[at].iov_len) sent -= parts[at++].iov_len;
    if (sent > 0) {
      parts[at].iov_base = static_cast<char*>(parts[at].iov_base) + sent;
      parts[at].iov_len -= sent;
    }
  }
}

inline void reply(int fd, unsigned char* memory, const std::vector<Block>& blocks, bool with_crc) {
  std::vector<std::uint32_t> crcs(blocks.size(), 0);
  std::vector<iovec> parts;
  std::size_t gathered = 0;
  for (std::size_t i = 0; i < blocks.size(); i++) {
    for (std::uint64_t at = 0; at < blocks[i].size; at += kPiece) {
      const std::size_t size = std::min<std::size_t>(kPiece, blocks[i].size - at);
      unsigned char* piece = memory + blocks[i].offset + at;
      if (with_crc) crcs[i] = moonpool::crc32c(piece, size, crcs[i]);
      parts.push_back({piece, size});
      gathered += size;
      if (with_crc && gathered >= kPiece) {
        send_gathered(fd, parts, MSG_MORE);
        parts.clear();
        gathered = 0;
      }
    }
  }
  parts.push_back({crcs.data(), crcs.size() * sizeof(std::uint32_t)});
  send_gathered(fd, parts, 0);
}

// Serves one connection until it closes.
inline void serve(int listener, unsigned char* memory, std::uint64_t memory_size) {
  const int fd = ::accept(listener, nullptr, nullptr);
  if (fd < 0) die("accept");
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Request request;
  std::vector<Block> blocks;
  while (receive(fd, &request, sizeof request)) {
    if (request.count > kBlocksMax) std::exit(2);
    blocks.resize(request.count);
    if (!receive(fd, blocks.data(), blocks.size() * sizeof(Block))) break;
    for (const Block& block : blocks) {
      if (block.size > memory_size || block.offset > memory_size - block.size) std::exit(2);
    }
    reply(fd, memory, blocks, request.with_crc != 0);
  }
  ::close(fd);
}

inline int listen_on_loopback(std::uint16_t& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd, 1) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    die("listen");
  }
  port = ntohs(address.sin_port);
  return fd;
}

class Client {
 public:
  explicit Client(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (fd_ < 0 || ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      die("connect");
    }
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { ::close(fd_); }

  // Reads the blocks back to back into `to`. False on a wrong CRC or a closed connection.
  bool read(const std::vector<Block>& blocks, unsigned char* to, bool with_crc) {
    ask(blocks, with_crc);
    return take(blocks, to, with_crc);
  }

  // The two halves: several may be asked for before the first is taken, in the same order.
  void ask(const std::vector<Block>& blocks, bool with_crc) {
    Request request{static_cast<std::uint32_t>(blocks.size()), with_crc ? 1u : 0u};
    std::vector<iovec> parts{{&request, sizeof request},
                             {const_cast<Block*>(blocks.data()), blocks.size() * sizeof(Block)}};
    send_gathered(fd_, parts, 0);
  }

  bool take(const std::vector<Block>& blocks, unsigned char* to, bool with_crc) {
    std::vector<std::uint32_t> crcs(blocks.size(), 0);
    if (!receive_payload(blocks, to, with_crc, crcs)) return false;
    std::vector<std::uint32_t> sent(blocks.size());
    if (!receive(fd_, sent.data(), sent.size() * sizeof(std::uint32_t))) return false;
    return sent == crcs;
  }

 private:
  // Takes what has come, and checks just that while it is in the cache.
  bool receive_payload(const std::vector<Block>& blocks, unsigned char* to, bool with_crc,
                       std::vector<std::uint32_t>& crcs) {
    std::uint64_t left = 0;
    for (const Block& block : blocks) left += block.size;
    std::size_t block = 0;
    std::uint64_t done = 0;  // of that block
    while (left > 0) {
      const ssize_t result = ::recv(fd_, to, std::min<std::uint64_t>(left, kPiece), 0);
      if (result == 0) return false;
      if (result < 0) die("recv");
      left -= static_cast<std::uint64_t>(result);
      for (auto fresh = static_cast<std::uint64_t>(result); fresh > 0;) {
        const std::uint64_t part = std::min(fresh, blocks[block].size - done);
        if (with_crc) crcs[block] = moonpool::crc32c(to, part, crcs[block]);
        to += part;
        fresh -= part;
        done += part;
        if (done == blocks[block].size) {
          block++;
          done = 0;
        }
      }
    }
    return true;
  }

  int fd_;
};

}  // namespace plain
