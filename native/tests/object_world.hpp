// A segment served over TCP, and a client that puts, reads and retires objects of it.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "endpoint.hpp"
#include "endpoint_requests.hpp"
#include "segment_agent.hpp"

namespace moonpool {

using Bytes = std::vector<std::uint8_t>;

struct Stored {
  std::shared_ptr<Op> op;
  std::uint32_t slot() const { return op->result().slots[0]; }
  std::uint64_t generation() const { return op->result().generations[0]; }
  bool ok() const {
    return op->state() == OpState::kDone && op->result().status[0] == code(Status::kOk);
  }
};

struct World {
  // `shown` is the token of the client; the server knows its own and those of the tenants.
  explicit World(std::vector<TenantToken> tenants = {}, std::string shown = "token")
      : agent(SegmentAgent::create(std::nullopt, {.capacity_bytes = 8 << 20,
                                                  .headroom_bytes = 2 << 20,
                                                  .slots = 64,
                                                  .rows = 4,
                                                  .tombstones = 64,
                                                  .trust_domain = "",
                                                  .populate = false})),
        server(0, "token", {}, std::move(tenants)),
        client(0, std::move(shown), {}) {
    server.attach(agent);
    peer = client.connect("127.0.0.1:" + std::to_string(server.listen_tcp("127.0.0.1", 0)), 5000);
  }

  Stored put(const Bytes& value, std::uint64_t seq) {
    ClaimRecord record{};
    record.size = value.size();
    record.seq = seq;
    record.key_len = 8;
    Bytes records(sizeof(record)), key(8);
    std::memcpy(records.data(), &record, sizeof(record));
    std::memcpy(key.data(), &seq, 8);
    ObjectSource source{value.data(), value.size()};
    Submission submission =
        put_objects(client, incarnation_of(*agent), {records, key, 0}, {&source, 1}, -1);
    Stored stored{submission.op};
    peer->submit(std::move(submission));
    stored.op->wait(-1);
    return stored;
  }

  std::shared_ptr<Op> read(const Stored& stored, Bytes& to) {
    ObjectRead one{
        stored.slot(), stored.generation(), 0, wire::kWholeObject, {to.data(), to.size()}};
    Submission submission = read_objects(client, incarnation_of(*agent), {&one, 1}, -1, true);
    auto op = submission.op;
    peer->submit(std::move(submission));
    return op;
  }

  void retire(const Stored& stored) {
    std::uint32_t slot = stored.slot();
    std::uint64_t generation = stored.generation();
    Status status;
    agent->retire({&slot, 1}, {&generation, 1}, 0, 0, {&status, 1});
    agent->drain();
  }

  std::shared_ptr<SegmentAgent> agent;
  Endpoint server;
  Endpoint client;
  std::shared_ptr<ClientConnection> peer;
};

}  // namespace moonpool
