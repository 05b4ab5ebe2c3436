// A tenant's token at an endpoint: its own objects, and nothing else.
#include <poll.h>
#include <sys/socket.h>

#include <string>

#include "object_world.hpp"

using namespace moonpool;

namespace {

constexpr std::uint32_t kOurs = 0x04030201, kTheirs = 7;

World tenant_world() { return World({{kTheirs, "theirs"}, {kOurs, "ours"}}, "ours"); }

// Claims and seals an object as another tenant's writer in this process would.
Stored put_as(World& world, std::uint32_t tenant, const Bytes& value) {
  ClaimRecord record{};
  record.size = value.size();
  record.seq = 99;
  record.tenant = tenant;
  record.key_len = 3;
  Claimed claimed;
  world.agent->claim({&record, 1}, "key", 0, kNoRow, 0, {&claimed, 1});
  CHECK(claimed.status == Status::kOk);
  Window window = world.agent->open_write(claimed.slot, claimed.generation, 0, kWholeObject);
  std::memcpy(window.parts[0].data, value.data(), value.size());
  world.agent->close_write(claimed.slot, claimed.generation);
  auto op = world.client.make_op(wire::Type::kReadObjects, 1, -1);
  OpResult result;
  result.status = {code(Status::kOk)};
  result.slots = {claimed.slot};
  result.generations = {claimed.generation};
  op->finish(std::move(result));
  return {op};
}

void seal(World& world, const Stored& stored) {
  std::uint32_t slot = stored.slot(), crc = 0;
  std::uint64_t generation = stored.generation();
  Status status;
  world.agent->seal({&slot, 1}, {&generation, 1}, {&crc, 1}, kSealComputesCrc, 0, {&status, 1});
  CHECK(status == Status::kOk);
}

}  // namespace

TEST(claims_become_the_tenants_own) {
  World world = tenant_world();
  Stored stored = world.put(Bytes(5000, 3), 1);
  CHECK(stored.ok());
  Inventory held = world.agent->inventory(0, 64);
  CHECK_EQ(held.tenant.size(), 1U);
  CHECK_EQ(held.tenant[0], kOurs);
  CHECK_EQ(held.keys.size(), 13U);  // a zero byte, the tenant's four, the eight of the key
  CHECK(held.keys.substr(0, 5) == std::string("\0\1\2\3\4", 5));
  Bytes to(5000);
  auto reading = world.read(stored, to);
  reading->wait(-1);
  CHECK_EQ(reading->result().status[0], code(Status::kOk));
  CHECK(to == Bytes(5000, 3));
}

TEST(objects_of_others_are_refused) {
  World world = tenant_world();
  Stored theirs = put_as(world, kTheirs, Bytes(4000, 9));
  seal(world, theirs);
  Bytes to(4000, 0);
  auto reading = world.read(theirs, to);
  reading->wait(-1);
  CHECK_EQ(reading->result().status[0], code(Status::kRefused));
  CHECK_EQ(reading->result().sizes[0], 0U);
  CHECK(to == Bytes(4000, 0));
  world.retire(theirs);  // no window is left open
  CHECK_EQ(world.agent->usage().free_slots, 64U);
}

TEST(claims_of_others_are_neither_written_nor_ended) {
  World world = tenant_world();
  Stored theirs = put_as(world, kTheirs, Bytes(100, 9));
  for (auto type : {wire::Type::kSeal, wire::Type::kAbort}) {
    auto op = world.client.make_op(type, 1, -1);
    wire::SlotBlock block{};
    block.slot = theirs.slot();
    block.generation = theirs.generation();
    Submission submission;
    submission.op = op;
    submission.target = incarnation_of(*world.agent);
    submission.meta.resize(sizeof(block));
    std::memcpy(submission.meta.data(), &block, sizeof(block));
    world.peer->submit(std::move(submission));
    op->wait(-1);
    CHECK(op->state() == OpState::kDone);
    CHECK(op->result().status[0] != code(Status::kOk));
  }
  seal(world, theirs);  // still theirs to seal
}

TEST(regions_are_out_of_a_tenants_reach) {
  World world = tenant_world();
  Bytes memory(64, 1);
  world.server.register_region("r", memory.data(), memory.size(), true);
  CHECK(world.peer->directory().regions.empty());
  auto op = world.client.make_op(wire::Type::kDirectory, 0, -1);
  Submission submission;
  submission.op = op;
  world.peer->submit(std::move(submission));
  op->wait(-1);
  CHECK(op->state() == OpState::kFailed);
}

TEST(a_stream_that_somebody_else_made_serves_too) {
  World world;
  int pair[2];
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  world.server.serve(Descriptor(pair[0]));
  world.peer = world.client.connect_over(Descriptor(pair[1]), "tunnel", 5000);
  CHECK(world.peer->address() == "tunnel");
  Stored stored = world.put(Bytes(300'000, 4), 1);
  CHECK(stored.ok());
}

TEST(one_address_has_so_many_connections) {
  EndpointOptions options;
  options.connections_per_peer_max = 2;
  Endpoint server(0, "token", options), client(0, "token", {});
  std::string address = "127.0.0.1:" + std::to_string(server.listen_tcp("127.0.0.1", 0));
  auto first = client.connect(address, 5000), second = client.connect(address, 5000);
  bool refused = false;
  try {
    client.connect(address, 5000);
  } catch (const std::system_error&) {
    refused = true;
  }
  CHECK(refused);
  CHECK_EQ(server.counters().connections_over_limit.load(), 1U);
  client.close_connection(first);
  for (int i = 0; i < 5000 && server.counters().connections_open.load() > 1; i++) {
    ::poll(nullptr, 0, 1);
  }
  CHECK(client.connect(address, 5000)->alive());
}

TEST_MAIN()
