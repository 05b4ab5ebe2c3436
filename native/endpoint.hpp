// The data plane's socket endpoint: server and client at once, one I/O thread, no policy.
// Every call is thread-safe. In a fork child the object is unusable and says so.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "endpoint_client.hpp"
#include "endpoint_options.hpp"
#include "hello.hpp"
#include "inbox.hpp"
#include "loop.hpp"
#include "op.hpp"
#include "region.hpp"
#include "server_request.hpp"

namespace moonpool {

class ServerConnection;

// The endpoint is closed, or belongs to the parent of this fork child.
struct ClosedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Endpoint {
 public:
  // `epoch` names this process; 0 draws one. Throws std::invalid_argument for options out of range.
  Endpoint(std::uint64_t epoch, std::string token, const EndpointOptions& options,
           std::vector<TenantToken> tenants = {});
  ~Endpoint();

  // Port 0 lets the system choose; returns the port. A host that is not loopback needs a token.
  std::uint16_t listen_tcp(const std::string& host, std::uint16_t port);
  // A socket file of mode 0600, removed at close; peers of other users are refused.
  void listen_unix(const std::string& path);
  // Serves one peer over a connected stream that somebody else made (a tunnel).
  void serve(Descriptor socket);
  // Blocks for the hello. Throws RefusedError, std::system_error, std::invalid_argument.
  std::shared_ptr<ClientConnection> connect(const std::string& address, std::int64_t timeout_ms);
  // The same over a connected stream; `address` is what it is called.
  std::shared_ptr<ClientConnection> connect_over(Descriptor socket, const std::string& address,
                                                 std::int64_t timeout_ms);
  // Ends the connection and its ops before it returns.
  void close_connection(const std::shared_ptr<ClientConnection>& connection);

  std::uint64_t register_region(std::string name, std::uint8_t* memory, std::uint64_t size,
                                bool writable);
  std::uint64_t share_region(std::string name, std::shared_ptr<SharedMemory> memory, bool writable);
  // Returns when no thread touches the region's memory any more; false for an unknown id.
  bool unregister_region(std::uint64_t id);

  // Serves a segment's objects. Detached, no request uses it any more and its connections' claims
  // are aborted. Throws std::invalid_argument, std::length_error; `detach` is false for an unknown.
  void attach(std::shared_ptr<SegmentAgent> agent);
  bool detach(const SegmentAgent& agent);

  // A fresh op of this endpoint; `deadline_ms` < 0 takes the option's default.
  std::shared_ptr<Op> make_op(wire::Type type, std::size_t blocks, std::int64_t deadline_ms);

  // Ends everything and joins the thread. Ops in flight end as FAILED. Safe to call twice.
  void close();
  void check_usable() const;   // throws ClosedError
  void check_process() const;  // the same, but a closed endpoint passes
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  std::uint64_t epoch() const { return epoch_; }
  const EndpointOptions& options() const { return options_; }
  const EndpointCounters& counters() const { return counters_; }
  Completions& completions() { return completions_; }
  Inbox& inbox() { return inbox_; }

 private:
  class Listener;
  void listen(Descriptor socket, bool is_unix);
  std::shared_ptr<ClientConnection> greet(Descriptor socket, const std::string& address,
                                          std::int64_t deadline_ns);
  std::int64_t deadline_ns(std::int64_t deadline_ms) const;
  void each_served(const std::function<void(ServerConnection&)>& visit);

  const std::uint64_t process_;
  const EndpointOptions options_;
  const std::uint64_t epoch_;
  const std::string token_;
  const std::vector<TenantToken> tenants_;
  EndpointCounters counters_;
  Completions completions_;
  RegionTable regions_;
  AgentTable agents_;
  Inbox inbox_;
  ServerContext context_;  // outlives the connections, which the loop has
  Loop loop_;
  std::atomic<std::uint64_t> next_op_{1};
  std::atomic<bool> closed_{false};
  std::mutex paths_mutex_;
  std::vector<std::string> unix_paths_;
};

}  // namespace moonpool
