// What Python holds of the endpoint room. Whoever waits for the I/O thread has released the GIL:
// that thread needs it when it drops the last reference to a segment's agent, and only then.
// Callers' buffers are held here, not in the ops, and released with the GIL.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "bind.hpp"
#include "buffer.hpp"
#include "column_args.hpp"
#include "endpoint.hpp"
#include "endpoint_requests.hpp"

namespace moonpool {

// The endpoint and the buffers kept for it. Lives until the last connection and op are gone.
struct EndpointHandle {
  EndpointHandle(std::uint64_t epoch, std::string token, const EndpointOptions& options,
                 std::vector<TenantToken> tenants)
      : endpoint(epoch, std::move(token), options, std::move(tenants)) {}
  ~EndpointHandle();

  // Releases the buffers of ops that nobody waits for and that have ended meanwhile.
  void sweep();

  struct Orphan {
    std::shared_ptr<Op> op;
    std::vector<Buffer> buffers;
  };
  std::map<std::uint64_t, Buffer> region_buffers;
  // Python owns the agents: the last reference must not be dropped by the I/O thread.
  std::vector<std::shared_ptr<SegmentAgent>> agents;
  std::vector<Orphan> orphans;
  Endpoint endpoint;  // destroyed first: after that no thread touches the buffers above
};

// Closes the connection with the last of its owners (the Connection and its Ops).
struct ConnectionHandle {
  ConnectionHandle(std::shared_ptr<EndpointHandle> home, std::shared_ptr<ClientConnection> peer)
      : home(std::move(home)), peer(std::move(peer)) {}
  ~ConnectionHandle();
  ConnectionHandle(const ConnectionHandle&) = delete;
  ConnectionHandle& operator=(const ConnectionHandle&) = delete;

  const std::shared_ptr<EndpointHandle> home;
  const std::shared_ptr<ClientConnection> peer;
};

using Connection = std::shared_ptr<ConnectionHandle>;

// An op and the buffers it moves bytes between. Dropped while under way, the buffers stay with the
// endpoint until the op has ended.
class OpHandle {
 public:
  OpHandle(Connection connection, std::shared_ptr<Op> op, std::vector<Buffer> buffers)
      : connection(std::move(connection)), op(std::move(op)), buffers_(std::move(buffers)) {}
  OpHandle(OpHandle&&) = default;
  ~OpHandle();

  // The result once terminal; throws std::runtime_error before.
  const OpResult& result() const;
  // Is it terminal? Who looks without waiting is served by the I/O thread from here on.
  bool look() const {
    if (op->terminal()) return true;
    connection->peer->watch();
    return op->terminal();
  }
  // Once terminal: the caller's buffers are the caller's again.
  void release_buffers() { buffers_.clear(); }

  Connection connection;
  std::shared_ptr<Op> op;
  // Where the blocks of a block transfer lie, and their bytes; empty for all other ops.
  std::vector<std::uint64_t> local_offsets, remote_offsets;
  std::uint64_t nbytes = 0;

 private:
  std::vector<Buffer> buffers_;
};

// Submits without the GIL. The answer of a small one is read by who waits for the op, looks at it
// or drops it.
OpHandle submit(const Connection& connection, Submission submission, std::vector<Buffer> buffers);

// Memory shared with a peer, as a Python buffer.
struct SharedRegion {
  std::uint64_t region;
  std::shared_ptr<SharedMemory> memory;
};

inline std::int64_t deadline_or_default(std::optional<std::int64_t> deadline_ms) {
  if (!deadline_ms) return -1;
  if (*deadline_ms < 0) throw std::invalid_argument("deadline_ms must not be negative");
  return *deadline_ms;
}

// Connection, with Op and SharedRegion, which it answers with.
nanobind::class_<ConnectionHandle> bind_connection(nanobind::module_& m);
void bind_endpoint_objects(nanobind::class_<ConnectionHandle>& connection);

}  // namespace moonpool
