// Two endpoints in one process under the sanitizers: transfers, cancels and closes from many
// threads.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <system_error>
#include <thread>

#include "check.hpp"
#include "endpoint.hpp"
#include "endpoint_requests.hpp"

using namespace moonpool;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Numbers = std::vector<std::uint64_t>;

Bytes pattern(std::size_t size, unsigned seed) {
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

RawMemory memory_of(Bytes& bytes) { return {bytes.data(), bytes.size()}; }

// A server with one region, and a client connected to it.
struct World {
  explicit World(std::size_t size, EndpointOptions options = {})
      : memory(pattern(size, 7)), server(0, "token", options), client(0, "token", options) {
    region = server.register_region("memory", memory.data(), memory.size(), true);
    std::string address = "127.0.0.1:" + std::to_string(server.listen_tcp("127.0.0.1", 0));
    peer = client.connect(address, 5000);
  }

  std::shared_ptr<Op> read(Bytes& to, std::uint64_t offset, std::uint64_t length,
                           std::int64_t deadline_ms = -1) {
    Submission submission = read_raw(client, *peer, region, Numbers{offset}, Numbers{length},
                                     memory_of(to), Numbers{0}, deadline_ms, true);
    auto op = submission.op;
    peer->submit(std::move(submission));
    return op;
  }

  std::shared_ptr<Op> write(Bytes& from, std::uint64_t offset) {
    Submission submission = write_raw(client, *peer, region, Numbers{offset}, Numbers{from.size()},
                                      memory_of(from), Numbers{0}, -1, true);
    auto op = submission.op;
    peer->submit(std::move(submission));
    return op;
  }

  Bytes memory;
  Endpoint server;
  Endpoint client;
  std::uint64_t region;
  std::shared_ptr<ClientConnection> peer;
};

bool well(const Op& op) {
  return op.state() == OpState::kDone && op.result().status[0] == code(Status::kOk);
}

}  // namespace

TEST(nothing_paces_what_stays_on_this_host) {
  World world(1000);
  int connected = 0;
  for (int fd = 0; fd < 256; fd++) {
    char name[16] = {};
    socklen_t size = sizeof(name);
    sockaddr_storage there{};
    socklen_t there_size = sizeof(there);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0 ||
        ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) {
      continue;
    }
    connected++;
    CHECK_EQ(std::string(name), std::string("reno"));
  }
  CHECK_EQ(connected, 2);  // both ends
}

TEST(reads_from_many_threads) {
  World world(1 << 20);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      Bytes to(200'000);
      for (int i = 0; i < 25; i++) {
        std::uint64_t length = random() % to.size();
        std::uint64_t offset = random() % (world.memory.size() - length);
        auto op = world.read(to, offset, length);
        op->wait(-1);
        CHECK(well(*op));
        CHECK(std::equal(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(length),
                         world.memory.begin() + static_cast<std::ptrdiff_t>(offset)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(world.client.counters().ops_done.load(), 100);
}

TEST(writes_from_many_threads) {
  World world(4 << 20);
  std::vector<std::thread> threads;
  std::vector<Bytes> sources;
  for (unsigned t = 0; t < 4; t++) sources.push_back(pattern(1 << 20, t));
  for (unsigned t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; i++) {
        auto op = world.write(sources[t], std::uint64_t{t} << 20);
        op->wait(-1);
        CHECK(well(*op));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (unsigned t = 0; t < 4; t++) {
    CHECK(std::equal(sources[t].begin(), sources[t].end(), world.memory.begin() + (t << 20)));
  }
}

TEST(cancel_leaves_the_destination_alone) {
  World world(8 << 20);
  for (int i = 0; i < 20; i++) {
    Bytes to(8 << 20);
    auto op = world.read(to, 0, to.size());
    op->wait(i % 4);
    world.peer->cancel(op);
    op->wait(-1);
    // The sanitizer sees a write that comes after this one.
    to.assign(to.size(), 1);
    CHECK(op->state() == OpState::kCancelled || well(*op));
    Bytes next(1000);
    auto after = world.read(next, 5, next.size());
    after->wait(-1);
    CHECK(well(*after));  // the connection lives on
    CHECK(std::equal(next.begin(), next.end(), world.memory.begin() + 5));
    for (auto byte : to) CHECK_EQ(byte, 1);
  }
}

// The answer of a small read is foreseen and received straight into place: into no place of one
// that was given up, nor into the next one's, whether that is answered or given up as well.
TEST(a_late_answer_ends_up_nowhere) {
  World world(64 << 10);
  for (int round = 0; round < 200; round++) {
    Bytes quiet(8 << 10, 0xaa), next(8 << 10, 0xbb), last(8 << 10, 0xcc);
    auto given_up = world.read(quiet, 0, quiet.size());
    auto op = world.read(next, 16 << 10, next.size());
    world.peer->cancel(given_up);
    given_up->wait(-1);
    const bool answered = given_up->state() == OpState::kDone;
    const Bytes before = quiet;
    CHECK(op->wait(5000));
    CHECK(well(*op));
    CHECK(std::memcmp(next.data(), &world.memory[16 << 10], next.size()) == 0);
    CHECK(quiet == before);
    if (answered) CHECK(std::memcmp(quiet.data(), world.memory.data(), quiet.size()) == 0);
    auto again = world.read(quiet, 0, quiet.size());
    auto too = world.read(last, 32 << 10, last.size());
    world.peer->cancel(again);
    world.peer->cancel(too);
    again->wait(-1);
    too->wait(-1);
    for (std::size_t i = 0; i < last.size(); i++) {
      CHECK(last[i] == 0xcc || last[i] == world.memory[(32 << 10) + i]);
    }
  }
}

TEST(a_cancelled_write_is_quiet) {
  World world(32 << 20);
  Bytes from(32 << 20, 3);
  for (int i = 0; i < 5; i++) {
    auto op = world.write(from, 0);
    world.peer->cancel(op);
    op->wait(-1);
    from.assign(from.size(), 4);
    CHECK(op->terminal());
    if (!world.peer->alive()) world.peer = world.client.connect(world.peer->address(), 5000);
  }
}

TEST(a_fenced_connection_s_writes_are_over_at_the_peer) {
  World world(32 << 20);
  Bytes from(32 << 20, 3);
  auto other = world.client.connect(world.peer->address(), 5000);
  auto fence_over = [&](ClientConnection& over, const ClientConnection& old) {
    Submission submission = fence(world.client, old, -1);
    auto op = submission.op;
    over.submit(std::move(submission));
    op->wait(-1);
    return op->state();
  };
  for (int i = 0; i < 5; i++) {
    auto op = world.write(from, 0);
    op->wait(i);
    CHECK(fence_over(*other, *world.peer) == OpState::kDone);
    // Nobody writes here any more, whatever the op came to.
    world.memory.assign(world.memory.size(), 9);
    op->wait(-1);
    for (auto byte : world.memory) CHECK_EQ(byte, 9);
    world.peer = world.client.connect(world.peer->address(), 5000);
  }
  CHECK(fence_over(*other, *world.peer) == OpState::kDone);  // idle
  CHECK(fence_over(*other, *world.peer) == OpState::kDone);  // gone
  CHECK(fence_over(*other, *other) == OpState::kFailed);     // itself: breaks the protocol
}

TEST(unregister_is_quiet) {
  World world(8 << 20);
  Bytes to(8 << 20);
  auto op = world.read(to, 0, to.size());
  CHECK(world.server.unregister_region(world.region));
  world.memory.assign(world.memory.size(), 0);
  op->wait(-1);
  CHECK(op->state() == OpState::kDone);
  auto again = world.read(to, 0, 10);
  again->wait(-1);
  CHECK_EQ(again->result().status[0], code(Status::kNotFound));
  CHECK(!world.server.unregister_region(world.region));
}

TEST(close_ends_all_ops) {
  World world(8 << 20);
  Bytes to(8 << 20);
  std::vector<std::shared_ptr<Op>> ops;
  for (int i = 0; i < 10; i++) ops.push_back(world.read(to, 0, to.size()));
  world.client.close();
  for (const auto& op : ops) CHECK(op->terminal());
  to.assign(to.size(), 1);
  world.client.close();
}

TEST(submits_race_with_close) {
  World world(1 << 20);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++) {
    threads.emplace_back([&] {
      Bytes to(5000);
      while (!stop) {
        try {
          auto op = world.read(to, 0, to.size());
          op->wait(-1);
          CHECK(op->terminal());
        } catch (const ClosedError&) {
          return;
        }
      }
    });
  }
  Bytes first(10);
  world.read(first, 0, first.size())->wait(-1);
  world.client.close();
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST(server_close_fails_the_ops) {
  World world(8 << 20);
  Bytes to(8 << 20);
  auto op = world.read(to, 0, to.size());
  world.server.close();
  op->wait(-1);
  CHECK(op->state() == OpState::kFailed || well(*op));
}

TEST(ops_in_flight_are_bounded) {
  EndpointOptions options;
  options.ops_max = 1;
  World world(8 << 20, options);
  Bytes to(8 << 20), other(10);
  auto first = world.read(to, 0, to.size());
  auto second = world.read(other, 0, other.size());
  second->wait(-1);
  first->wait(-1);
  CHECK(well(*first));
  CHECK(well(*second) || second->result().status[0] == code(Status::kBusy));
}

TEST(connections_are_bounded) {
  EndpointOptions options;
  options.connections_max = 1;
  World world(100, options);
  bool refused = false;
  try {
    world.client.connect(world.peer->address(), 5000);
  } catch (const std::system_error&) {
    refused = true;
  }
  CHECK(refused);
  CHECK_EQ(world.server.counters().connections_over_limit.load(), 1);
}

TEST(a_slow_reader_does_not_starve_others) {
  EndpointOptions options;
  options.replies_max = 2;
  World world(8 << 20, options);
  Bytes to(8 << 20), small(100);
  std::vector<std::shared_ptr<Op>> ops;
  for (int i = 0; i < 8; i++) ops.push_back(world.read(to, 0, to.size()));
  auto other = world.client.connect(world.peer->address(), 5000);
  std::swap(other, world.peer);
  auto quick = world.read(small, 0, small.size());
  quick->wait(-1);
  CHECK(well(*quick));
  for (const auto& op : ops) {
    op->wait(-1);
    CHECK(well(*op));
  }
}

TEST(shared_memory_is_sealed) {
  auto memory = SharedMemory::allocate(10'000);
  CHECK(::ftruncate(memory->fd(), 0) != 0);
  auto mapped = SharedMemory::map(Descriptor(::dup(memory->fd())), 10'000, false);
  memory->memory()[9'999] = 5;
  CHECK_EQ(mapped->memory()[9'999], 5);
}

TEST_MAIN()
