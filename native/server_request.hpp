// One request that an accepted connection serves, from its header to its answer. Lives on the I/O
// thread.
//
//   begin -> (payload: check ...) -> complete -> [queue] -> answer -> (reply leaves: recheck) ->
//   destroyed
//
// `release` may come at any point (deadline, unregister, detach, connection gone): from then on the
// request touches no memory but its own, and its records say why.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpu_share.hpp"
#include "endpoint_options.hpp"
#include "frame.hpp"
#include "frame_writer.hpp"
#include "hello.hpp"
#include "inbox.hpp"
#include "loop.hpp"
#include "region.hpp"
#include "server_objects.hpp"
#include "status.hpp"

namespace moonpool {

// What accepted connections serve from. Owned by the endpoint, outlives them.
struct ServerContext {
  const EndpointOptions& options;
  EndpointCounters& counters;
  RegionTable& regions;
  AgentTable& agents;
  Inbox& inbox;
  const std::uint64_t epoch;
  const std::string token;
  const std::vector<TenantToken>& tenants;
  Loop& loop;
  // The I/O thread's own.
  std::map<std::string, std::uint32_t> peers{};  // connections by address
  CpuFollower follower{};
  std::vector<std::uint8_t> spare{};  // room of the last gather, for the next one

  Directory directory() const;
};

class ServerRequest {
 public:
  ServerRequest(ServerContext& context, const wire::Header& header, std::int64_t deadline_ns)
      : deadline_ns(deadline_ns), header(header), records(header.count), context_(context) {}
  virtual ~ServerRequest() = default;

  // Takes the descriptors and lays out the payload to come. False: they break the protocol.
  virtual bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>* pieces) = 0;
  // Before each piece of payload: nulls what may not be written any more.
  virtual void check(std::span<Piece>) {}
  // The request is all here. `crcs`: of what arrived; `sent`: what the sender computed, if it did.
  virtual void complete(std::span<const std::uint32_t>, std::span<const std::uint32_t>) {}
  // Its turn: lays out the reply's payload, `lengths` by block (reads), or `reply_meta`.
  virtual void answer(OutFrame&) {}
  // The payload is about to have left: the last look before the trailer is made.
  virtual void recheck(const OutFrame&) {}
  virtual void release(Status why);

  bool released() const { return released_; }
  void set_all(Status status);

  const std::int64_t deadline_ns;
  const wire::Header header;
  std::optional<std::uint32_t> tenant;  // whose objects it may touch; none: anybody's
  std::vector<wire::ReplyRecord> records;
  std::vector<std::uint8_t> reply_meta;

 protected:
  ServerContext& context_;
  bool released_ = false;
};

// The request for a header's type; null for an unknown one.
std::unique_ptr<ServerRequest> make_request(ServerContext& context, ConnectionClaims& claims,
                                            const wire::Header& header, std::int64_t deadline_ns);
std::unique_ptr<ServerRequest> make_raw_request(ServerContext& context, const wire::Header& header,
                                                std::int64_t deadline_ns);
std::unique_ptr<ServerRequest> make_fence(ServerContext& context, const wire::Header& header,
                                          std::int64_t deadline_ns);
std::unique_ptr<ServerRequest> make_notify(ServerContext& context, const wire::Header& header,
                                           std::int64_t deadline_ns);
std::unique_ptr<ServerRequest> make_object_request(ServerContext& context, ConnectionClaims& claims,
                                                   const wire::Header& header,
                                                   std::int64_t deadline_ns);

inline std::uint8_t code(Status status) { return static_cast<std::uint8_t>(status); }

// The meta as an array of T; false when its size is not `count` of them.
template <class T>
bool load_blocks(std::span<const std::uint8_t> meta, std::uint32_t count, std::vector<T>* blocks) {
  if (meta.size() != std::size_t{count} * sizeof(T)) return false;
  blocks->resize(count);
  if (count > 0) std::memcpy(blocks->data(), meta.data(), meta.size());
  return true;
}

// Adds up lengths; false when the sum passes `max`.
template <class Blocks>
bool sum_lengths(const Blocks& blocks, std::uint64_t max, std::uint64_t* total) {
  *total = 0;
  for (const auto& block : blocks) {
    if (block.length > max - *total) return false;
    *total += block.length;
  }
  return true;
}

}  // namespace moonpool
