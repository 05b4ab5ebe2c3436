// Threads that read a connection for themselves and for others, under the sanitizers: who waits,
// who gives up, who cancels and who closes, all at once.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <random>
#include <thread>

#include "check.hpp"
#include "endpoint.hpp"
#include "endpoint_requests.hpp"

using namespace moonpool;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Numbers = std::vector<std::uint64_t>;
using OpPtr = std::shared_ptr<Op>;

struct World {
  explicit World(std::size_t size) : memory(size), server(0, "token", {}), client(0, "token", {}) {
    std::mt19937 random(5);
    for (auto& byte : memory) byte = static_cast<std::uint8_t>(random());
    region = server.register_region("memory", memory.data(), memory.size(), true);
    peer = client.connect("127.0.0.1:" + std::to_string(server.listen_tcp("127.0.0.1", 0)), 5000);
  }

  OpPtr read(Bytes& to, std::int64_t deadline_ms = -1) {
    Submission submission = read_raw(client, *peer, region, Numbers{0}, Numbers{to.size()},
                                     {to.data(), to.size()}, Numbers{0}, deadline_ms, true);
    OpPtr op = submission.op;
    peer->submit(std::move(submission));
    return op;
  }

  bool holds(const Op& op, const Bytes& to) const {
    return op.state() == OpState::kDone && op.result().status[0] == code(Status::kOk) &&
           std::equal(to.begin(), to.end(), memory.begin());
  }

  Bytes memory;
  Endpoint server;
  Endpoint client;
  std::uint64_t region;
  std::shared_ptr<ClientConnection> peer;
};

// A peer in a process of its own, which can be stopped: then it accepts requests and answers none.
struct StoppedWorld {
  StoppedWorld() {
    int ends[2];
    CHECK_EQ(::pipe(ends), 0);
    child = ::fork();  // before this process has an I/O thread
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Endpoint server(0, "token", {});
      std::uint16_t port = server.listen_tcp("127.0.0.1", 0);
      if (::write(ends[1], &port, sizeof(port)) != sizeof(port)) std::_Exit(1);
      while (true) ::pause();
    }
    std::uint16_t port = 0;
    CHECK_EQ(::read(ends[0], &port, sizeof(port)), sizeof(port));
    ::close(ends[0]);
    ::close(ends[1]);
    client.emplace(0, "token", EndpointOptions{});
    peer = client->connect("127.0.0.1:" + std::to_string(port), 5000);
    CHECK_EQ(::kill(child, SIGSTOP), 0);
    CHECK_EQ(::waitpid(child, nullptr, WUNTRACED), child);  // it stops some time after the signal
  }
  ~StoppedWorld() {
    client->close();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }

  OpPtr ping(std::int64_t deadline_ms = 20'000) {
    Submission submission;
    submission.op = client->make_op(wire::Type::kPing, 0, deadline_ms);
    OpPtr op = submission.op;
    peer->submit(std::move(submission));
    return op;
  }

  void go_on() { CHECK_EQ(::kill(child, SIGCONT), 0); }

  pid_t child = 0;
  std::optional<Endpoint> client;
  std::shared_ptr<ClientConnection> peer;
};

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

}  // namespace

TEST(a_cancel_reaches_the_thread_that_reads) {
  StoppedWorld world;
  auto op = world.ping();
  std::thread waiter([&] { op->wait(-1); });
  rest();
  world.peer->cancel(op);
  waiter.join();
  CHECK(op->state() == OpState::kCancelled);
}

TEST(an_op_expires_while_its_waiter_reads) {
  StoppedWorld world;
  auto op = world.ping(30);
  CHECK(op->wait(-1));
  CHECK(op->state() == OpState::kExpired);
}

TEST(close_ends_the_ops_of_readers_and_followers) {
  StoppedWorld world;
  std::vector<OpPtr> ops;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; i++) ops.push_back(world.ping(600'000));
  for (const auto& op : ops) waiters.emplace_back([op] { op->wait(-1); });
  rest();
  world.client->close_connection(world.peer);
  for (auto& waiter : waiters) waiter.join();
  for (const auto& op : ops) CHECK(op->state() == OpState::kFailed);
}

TEST(an_impatient_reader_hands_back) {
  StoppedWorld world;
  auto first = world.ping(), second = world.ping();
  std::thread follower([&] { second->wait(-1); });
  CHECK(!first->wait(20));
  rest();
  world.go_on();
  follower.join();
  CHECK(second->state() == OpState::kDone);
  CHECK(first->wait(20'000));
  CHECK(first->state() == OpState::kDone);
}

TEST(an_answer_nobody_waits_for_arrives) {
  StoppedWorld world;
  Completions completions;
  auto waited = world.ping(), unwatched = world.ping();
  unwatched->notify(completions);
  CHECK(!waited->wait(5));
  world.go_on();
  pollfd ready{completions.fd(), POLLIN, 0};
  CHECK_EQ(::poll(&ready, 1, 20'000), 1);
  CHECK_EQ(completions.drain().at(0), unwatched->id);
}

TEST(a_reader_completes_ops_of_others) {
  StoppedWorld world;
  Completions completions;
  auto other = world.ping(), mine = world.ping();
  other->notify(completions);
  std::thread waiter([&] { mine->wait(-1); });
  rest();
  world.go_on();
  waiter.join();
  CHECK(mine->state() == OpState::kDone);
  CHECK(other->state() == OpState::kDone);  // answers come in order
  CHECK_EQ(completions.drain().at(0), other->id);
}

TEST(a_dead_peer_is_noticed_while_idle_and_while_read) {
  StoppedWorld world;
  auto op = world.ping();
  std::thread waiter([&] { op->wait(-1); });
  rest();
  CHECK_EQ(::kill(world.child, SIGKILL), 0);
  waiter.join();
  CHECK(op->state() == OpState::kFailed);
  for (int i = 0; world.peer->alive() && i < 1000; i++) rest();
  CHECK(!world.peer->alive());

  World idle(100);
  Bytes to(100);
  CHECK(idle.read(to)->wait(-1));
  idle.server.close();
  for (int i = 0; idle.peer->alive() && i < 1000; i++) rest();
  CHECK(!idle.peer->alive());
}

// Mixed sizes, patience, deadlines and cancels on one connection; every op ends, and memory is the
// caller's again when it has (the sanitizer sees a late write).
TEST(many_waiters_on_one_connection) {
  World world(1 << 20);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; t++) {
    threads.emplace_back([&, t] {
      std::printf("seed %u\n", t);
      std::mt19937 random(t);
      for (int i = 0; i < 40; i++) {
        Bytes to(random() % 3 ? random() % 5000 : random() % world.memory.size());
        auto op = world.read(to, random() % 4 ? 20'000 : random() % 3);
        switch (random() % 4) {
          case 0:
            op->wait(random() % 2);
            world.peer->cancel(op);
            break;
          case 1:
            op->wait(random() % 3);
            break;
          default:
            break;
        }
        CHECK(op->wait(-1));
        if (op->state() == OpState::kDone) {
          auto status = op->result().status[0];  // the server may have found it expired first
          if (status != code(Status::kExpired)) CHECK_EQ(status, code(Status::kOk));
          if (status == code(Status::kOk)) CHECK(world.holds(*op, to));
        }
        to.assign(to.size(), 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  Bytes last(1000);
  auto op = world.read(last);
  CHECK(op->wait(-1));
  CHECK(world.holds(*op, last));
}

TEST(closes_race_with_readers) {
  World world(1 << 20);
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (unsigned t = 0; t < 3; t++) {
    threads.emplace_back([&] {
      Bytes to(100'000);
      while (!stop) {
        auto peer = world.client.connect(world.peer->address(), 20'000);
        Submission submission =
            read_raw(world.client, *peer, world.region, Numbers{0}, Numbers{to.size()},
                     {to.data(), to.size()}, Numbers{0}, -1, true);
        auto op = submission.op;
        peer->submit(std::move(submission));
        std::thread closer([&] { world.client.close_connection(peer); });
        op->wait(-1);
        CHECK(op->terminal());
        to.assign(to.size(), 1);
        closer.join();
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST_MAIN()
