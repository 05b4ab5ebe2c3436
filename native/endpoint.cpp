#include "endpoint.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "endpoint_server.hpp"
#include "process_number.hpp"

namespace moonpool {
namespace {

EndpointOptions checked(const EndpointOptions& options) {
  auto at_least = [](const char* name, std::uint64_t value, std::uint64_t least) {
    if (value < least) {
      throw std::invalid_argument(std::string(name) + " must be at least " + std::to_string(least) +
                                  ", got " + std::to_string(value));
    }
  };
  at_least("frame_blocks_max", options.frame_blocks_max, 1);
  at_least("frame_meta_bytes_max", options.frame_meta_bytes_max, 4096);
  at_least("frame_payload_bytes_max", options.frame_payload_bytes_max, 4096);
  at_least("connections_max", options.connections_max, 1);
  at_least("connections_per_peer_max", options.connections_per_peer_max, 1);
  at_least("regions_max", options.regions_max, 1);
  at_least("segments_max", options.segments_max, 1);
  at_least("claims_max", options.claims_max, 1);
  at_least("ops_max", options.ops_max, 1);
  at_least("replies_max", options.replies_max, 1);
  at_least("turn_bytes", options.turn_bytes, 4096);
  at_least("piece_bytes", options.piece_bytes, 4096);
  at_least("hello_ms", options.hello_ms, 1);
  at_least("deadline_ms", options.deadline_ms, 1);
  at_least("deadline_max_ms", options.deadline_max_ms, options.deadline_ms);
  at_least("stall_ms", options.stall_ms, 1);
  return options;
}

// The bytes of an IP address, without its port.
std::string address_of(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET6) {
    const auto& ip = reinterpret_cast<const sockaddr_in6*>(&from)->sin6_addr;
    return {reinterpret_cast<const char*>(&ip), sizeof(ip)};
  }
  const auto& ip = reinterpret_cast<const sockaddr_in*>(&from)->sin_addr;
  return {reinterpret_cast<const char*>(&ip), sizeof(ip)};
}

}  // namespace

// Accepts, a few a turn; beyond connections_max it closes what it accepts, so that a peer knows.
class Endpoint::Listener : public Source {
 public:
  Listener(ServerContext& context, Descriptor socket, bool is_unix)
      : context_(context), socket_(std::move(socket)), is_unix_(is_unix) {}
  int fd() const override { return socket_.get(); }

  bool on_event(std::uint32_t) override {
    for (int i = 0; i < 16; i++) {
      sockaddr_storage from{};
      socklen_t size = sizeof(from);
      Descriptor accepted(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                                    SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!accepted) {
        // Out of descriptors: the waiting peer would raise this event without end.
        if (errno == EMFILE || errno == ENFILE) pause();
        return true;
      }
      if (context_.counters.connections_open.load(std::memory_order_relaxed) >=
          context_.options.connections_max) {
        count(context_.counters.connections_over_limit);
        continue;
      }
      std::string peer = is_unix_ ? "" : address_of(from);
      if (!peer.empty() && context_.peers[peer] >= context_.options.connections_per_peer_max) {
        count(context_.counters.connections_over_limit);
        continue;
      }
      count(context_.counters.connections_accepted);
      if (!is_unix_) set_tcp_options(accepted.get());
      context_.loop.add(std::make_shared<ServerConnection>(context_, std::move(accepted), is_unix_,
                                                           std::move(peer)),
                        EPOLLIN);
    }
    return true;
  }

  std::int64_t on_timer(std::int64_t now_ns) override {
    if (resume_ns_ == kNoDeadline || now_ns < resume_ns_) return resume_ns_;
    resume_ns_ = kNoDeadline;
    context_.loop.set_events(*this, EPOLLIN);
    return kNoDeadline;
  }

  void on_removed() override { socket_.reset(); }

 private:
  void pause() {
    resume_ns_ = monotonic_ns() + 100'000'000;
    context_.loop.set_events(*this, 0);
    context_.loop.note_deadline(resume_ns_);
  }

  ServerContext& context_;
  Descriptor socket_;
  const bool is_unix_;
  std::int64_t resume_ns_ = kNoDeadline;
};

Endpoint::Endpoint(std::uint64_t epoch, std::string token, const EndpointOptions& options,
                   std::vector<TenantToken> tenants)
    : process_(process_number()),
      options_(checked(options)),
      epoch_(epoch ? epoch : random_epoch()),
      token_(std::move(token)),
      tenants_(std::move(tenants)),
      regions_(options.regions_max),
      agents_(options.segments_max),
      inbox_(options.notifications_max),
      context_{options_, counters_, regions_, agents_, inbox_, epoch_, token_, tenants_, loop_} {}

Endpoint::~Endpoint() {
  if (process_ == process_number()) close();
}

void Endpoint::check_process() const {
  if (process_ != process_number()) {
    throw ClosedError("this endpoint belongs to the parent process; make a new one after fork");
  }
}

void Endpoint::check_usable() const {
  check_process();
  if (closed()) throw ClosedError("this endpoint is closed");
}

void Endpoint::listen(Descriptor socket, bool is_unix) {
  auto listener = std::make_shared<Listener>(context_, std::move(socket), is_unix);
  if (!loop_.run([&] { loop_.add(listener, EPOLLIN); }))
    throw ClosedError("this endpoint is closed");
}

std::uint16_t Endpoint::listen_tcp(const std::string& host, std::uint16_t port) {
  check_usable();
  if (token_.empty() && !is_loopback(host)) {
    throw std::invalid_argument("listening on " + host +
                                " needs a token; without one only loopback is served");
  }
  std::uint16_t bound = 0;
  listen(listen_tcp_socket(host, port, &bound), false);
  return bound;
}

void Endpoint::listen_unix(const std::string& path) {
  check_usable();
  listen(listen_unix_socket(path), true);
  std::lock_guard lock(paths_mutex_);
  unix_paths_.push_back(path);
}

void Endpoint::serve(Descriptor socket) {
  check_usable();
  auto connection = std::make_shared<ServerConnection>(context_, std::move(socket), false, "");
  if (!loop_.run([&] { loop_.add(connection, EPOLLIN); })) {
    throw ClosedError("this endpoint is closed");
  }
  count(counters_.connections_accepted);
}

std::shared_ptr<ClientConnection> Endpoint::connect(const std::string& address,
                                                    std::int64_t timeout_ms) {
  check_usable();
  std::int64_t deadline = deadline_ns(timeout_ms);
  Descriptor socket = connect_socket(address, deadline);
  return greet(std::move(socket), address, deadline);
}

std::shared_ptr<ClientConnection> Endpoint::connect_over(Descriptor socket,
                                                         const std::string& address,
                                                         std::int64_t timeout_ms) {
  check_usable();
  return greet(std::move(socket), address, deadline_ns(timeout_ms));
}

std::shared_ptr<ClientConnection> Endpoint::greet(Descriptor socket, const std::string& address,
                                                  std::int64_t deadline) {
  Welcome welcome =
      say_hello(socket.get(), token_, epoch_, deadline, options_.frame_meta_bytes_max);
  auto connection = std::make_shared<ClientConnection>(loop_, options_, counters_,
                                                       std::move(socket), address, welcome);
  if (!loop_.run([&] { loop_.add(connection, ReaderRole::kFirstEvents); })) {
    throw ClosedError("this endpoint is closed");
  }
  count(counters_.connections_made);
  return connection;
}

void Endpoint::close_connection(const std::shared_ptr<ClientConnection>& connection) {
  if (process_ != process_number()) return;
  loop_.run([&] { loop_.remove(connection->token); });
}

std::uint64_t Endpoint::register_region(std::string name, std::uint8_t* memory, std::uint64_t size,
                                        bool writable) {
  check_usable();
  return regions_.add({.name = std::move(name),
                       .memory = memory,
                       .size = size,
                       .writable = writable,
                       .shared = nullptr});
}

std::uint64_t Endpoint::share_region(std::string name, std::shared_ptr<SharedMemory> memory,
                                     bool writable) {
  check_usable();
  return regions_.add({.name = std::move(name),
                       .memory = memory->memory(),
                       .size = memory->size(),
                       .writable = writable,
                       .shared = memory});
}

bool Endpoint::unregister_region(std::uint64_t id) {
  if (!regions_.remove(id)) return false;
  if (process_ != process_number()) return true;
  auto uses_region = [id](const wire::Header& header) {
    auto type = wire::Type{header.type};
    return (type == wire::Type::kReadRaw || type == wire::Type::kWriteRaw) &&
           wire::load<std::uint64_t>(header.target.data()) == id;
  };
  each_served([&](ServerConnection& one) { one.withdraw(uses_region, Status::kNotFound); });
  return true;
}

void Endpoint::attach(std::shared_ptr<SegmentAgent> agent) {
  check_usable();
  agents_.add(std::move(agent));
}

bool Endpoint::detach(const SegmentAgent& agent) {
  if (!agents_.remove(agent)) return false;
  if (process_ != process_number()) return true;
  wire::Id16 incarnation = incarnation_of(agent);
  auto uses_segment = [&](const wire::Header& header) {
    auto type = wire::Type{header.type};
    const bool of_objects = type >= wire::Type::kReadObjects && type <= wire::Type::kWriteObject;
    return (of_objects || type == wire::Type::kGatherRows) && header.target == incarnation;
  };
  each_served([&](ServerConnection& one) {
    one.withdraw(uses_segment, Status::kNotFound);
    one.drop_claims(agent);
  });
  return true;
}

// Runs between two turns of the I/O thread: what it ends is over when it returns.
void Endpoint::each_served(const std::function<void(ServerConnection&)>& visit) {
  loop_.run([&] {
    loop_.for_each([&](Source& source) {
      if (auto* connection = dynamic_cast<ServerConnection*>(&source)) visit(*connection);
    });
  });
}

std::int64_t Endpoint::deadline_ns(std::int64_t deadline_ms) const {
  std::int64_t left = deadline_ms < 0 ? options_.deadline_ms : deadline_ms;
  return monotonic_ns() + std::min<std::int64_t>(left, options_.deadline_max_ms) * 1'000'000;
}

std::shared_ptr<Op> Endpoint::make_op(wire::Type type, std::size_t blocks,
                                      std::int64_t deadline_ms) {
  check_usable();
  if (blocks > options_.frame_blocks_max) {
    throw std::invalid_argument(
        "a batch has at most frame_blocks_max = " + std::to_string(options_.frame_blocks_max) +
        " blocks, got " + std::to_string(blocks));
  }
  return std::make_shared<Op>(next_op_.fetch_add(1), type, static_cast<std::uint32_t>(blocks),
                              deadline_ns(deadline_ms));
}

void Endpoint::close() {
  if (process_ != process_number()) return;
  closed_.store(true, std::memory_order_release);
  loop_.stop();
  inbox_.close();
  std::lock_guard lock(paths_mutex_);
  for (const std::string& path : unix_paths_) ::unlink(path.c_str());
  unix_paths_.clear();
}

}  // namespace moonpool
