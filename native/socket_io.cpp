#include "socket_io.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <unordered_set>

namespace moonpool {
namespace {

// All live descriptors of this process, so that a fork child can close its copies.
struct FdRegistry {
  std::mutex mutex;
  std::unordered_set<int> fds;
};

FdRegistry& registry() {
  static auto* const instance = [] {
    auto* made = new FdRegistry;  // never destroyed: descriptors may outlive static destruction
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     for (int fd : registry().fds) ::close(fd);
                     registry().fds.clear();
                     registry().mutex.unlock();
                   });
    return made;
  }();
  return *instance;
}

// There is no path to measure, and no bytes get lost: an algorithm that paces (bbr) would only hold
// back the rest of an answer until a timer fires. Every kernel has this one, and allows it to all.
constexpr char kSameHostCongestion[] = "reno";

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Only files: an abstract name has no permissions, so anybody on the host could sit on it.
  if (path.empty() || path[0] == '\0' || path.size() >= sizeof(address.sun_path)) {
    throw std::invalid_argument("a UNIX socket path has 1 to 107 characters, got \"" + path + "\"");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) {
    throw std::invalid_argument("cannot resolve host \"" + host + "\": " + gai_strerror(rc));
  }
  return AddressList(found, freeaddrinfo);
}

void connect_before(int fd, const sockaddr* address, socklen_t size, std::int64_t deadline_ns,
                    const std::string& name) {
  if (::connect(fd, address, size) == 0) return;
  // A UNIX socket whose backlog is full says EAGAIN and cannot be polled for room.
  while (errno == EAGAIN && left_ms(deadline_ns) > 0) {
    ::poll(nullptr, 0, std::min(left_ms(deadline_ns), 10));
    if (::connect(fd, address, size) == 0) return;
  }
  if (errno != EINPROGRESS && errno != EINTR) fail("cannot connect to " + name);
  pollfd waiting{fd, POLLOUT, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, left_ms(deadline_ns));
  } while (ready < 0 && errno == EINTR);
  int error = ETIMEDOUT;
  socklen_t error_size = sizeof(error);
  if (ready > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
  if (error != 0) {
    errno = error;
    fail("cannot connect to " + name);
  }
}

}  // namespace

Descriptor::Descriptor(int fd) : fd_(fd), owner_(::getpid()) {
  if (fd < 0) return;
  std::lock_guard lock(registry().mutex);
  registry().fds.insert(fd);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(other.fd_), owner_(other.owner_) {
  other.fd_ = -1;
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.fd_;
    owner_ = other.owner_;
    other.fd_ = -1;
  }
  return *this;
}

void Descriptor::reset() {
  if (fd_ < 0) return;
  if (owner_ == ::getpid()) {  // in a fork child the number may already name something else
    std::lock_guard lock(registry().mutex);
    registry().fds.erase(fd_);
    ::close(fd_);
  }
  fd_ = -1;
}

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int left_ms(std::int64_t deadline_ns) {
  std::int64_t left = (deadline_ns - monotonic_ns() + 999'999) / 1'000'000;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

bool same_host(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0) {
    return false;
  }
  if (here.ss_family == AF_INET6) {
    return std::memcmp(&reinterpret_cast<sockaddr_in6*>(&here)->sin6_addr,
                       &reinterpret_cast<sockaddr_in6*>(&there)->sin6_addr, sizeof(in6_addr)) == 0;
  }
  return here.ss_family == AF_INET && reinterpret_cast<sockaddr_in*>(&here)->sin_addr.s_addr ==
                                          reinterpret_cast<sockaddr_in*>(&there)->sin_addr.s_addr;
}

void set_tcp_options(int fd) {
  int on = 1, idle_s = 10, interval_s = 3, probes = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  if (same_host(fd)) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSameHostSendBytes, sizeof(kSameHostSendBytes));
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kSameHostCongestion, sizeof(kSameHostCongestion));
  }
}

Descriptor listen_tcp_socket(const std::string& host, std::uint16_t port,
                             std::uint16_t* bound_port) {
  AddressList list = resolve(host, port, AI_PASSIVE);
  Descriptor fd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail("cannot make a TCP socket");
  int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  std::string name = host + ":" + std::to_string(port);
  if (::bind(fd.get(), list->ai_addr, list->ai_addrlen) != 0) fail("cannot bind " + name);
  if (::listen(fd.get(), 128) != 0) fail("cannot listen on " + name);
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  *bound_port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return fd;
}

Descriptor listen_unix_socket(const std::string& path) {
  sockaddr_un address = unix_address(path);
  Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail("cannot make a UNIX socket");
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::bind(fd.get(), generic, sizeof(address)) != 0) {
    if (errno != EADDRINUSE) fail("cannot bind " + path);
    // A file left by a dead owner is replaced; one that still answers is somebody's.
    Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(probe.get(), generic, sizeof(address)) == 0 || errno != ECONNREFUSED) {
      errno = EADDRINUSE;
      fail("cannot bind " + path);
    }
    ::unlink(path.c_str());
    if (::bind(fd.get(), generic, sizeof(address)) != 0) fail("cannot bind " + path);
  }
  if (::chmod(path.c_str(), 0600) != 0) fail("cannot restrict " + path);
  if (::listen(fd.get(), 128) != 0) fail("cannot listen on " + path);
  return fd;
}

Descriptor connect_socket(const std::string& address, std::int64_t deadline_ns) {
  if (address.rfind("unix:", 0) == 0) {
    sockaddr_un target = unix_address(address.substr(5));
    Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) fail("cannot make a UNIX socket");
    connect_before(fd.get(), reinterpret_cast<sockaddr*>(&target), sizeof(target), deadline_ns,
                   address);
    return fd;
  }
  auto colon = address.rfind(':');
  unsigned port = 0;
  const char* end = address.data() + address.size();
  if (colon == std::string::npos ||
      std::from_chars(address.data() + colon + 1, end, port).ptr != end || port == 0 ||
      port > 65535) {
    throw std::invalid_argument("an address is \"host:port\" or \"unix:/path\", got \"" + address +
                                "\"");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  AddressList list = resolve(host, static_cast<std::uint16_t>(port), 0);
  Descriptor fd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail("cannot make a TCP socket");
  connect_before(fd.get(), list->ai_addr, list->ai_addrlen, deadline_ns, address);
  set_tcp_options(fd.get());
  return fd;
}

}  // namespace moonpool
