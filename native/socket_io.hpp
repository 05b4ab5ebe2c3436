// Sockets of the data plane: owned descriptors that neither survive exec nor fork, listening,
// connecting.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace moonpool {

// To a peer on this host only what fits the caches is under way at a time: bytes that left them
// cost both ends a third more CPU time. To other hosts the kernel sizes the buffer by the distance.
inline constexpr int kSameHostSendBytes = 208 << 10;

// A descriptor that is close-on-exec and is closed in fork children too: a child that kept a copy
// of a socket would hide its parent's death from the peer.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
  pid_t owner_ = 0;
};

std::int64_t monotonic_ns();

// Milliseconds from now until `deadline_ns`, rounded up, never negative.
int left_ms(std::int64_t deadline_ns);

// These throw std::invalid_argument for an address that cannot be parsed and std::system_error for
// what the system refuses.
Descriptor listen_tcp_socket(const std::string& host, std::uint16_t port,
                             std::uint16_t* bound_port);
Descriptor listen_unix_socket(const std::string& path);
// Non-blocking socket connected to "host:port" or "unix:/path" before the deadline.
Descriptor connect_socket(const std::string& address, std::int64_t deadline_ns);
bool is_loopback(const std::string& host);
// For a connected socket: TCP, and both ends have the same address.
bool same_host(int fd);
// For a connected TCP socket.
void set_tcp_options(int fd);

}  // namespace moonpool
