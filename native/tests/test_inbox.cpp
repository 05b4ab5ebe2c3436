// Notifications between two endpoints: their order, the bound, who takes none, who reads them.
#include <poll.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "../endpoint.hpp"
#include "../endpoint_requests.hpp"
#include "check.hpp"

using namespace moonpool;

namespace {

using Bytes = std::vector<std::uint8_t>;

struct World {
  explicit World(std::uint32_t most)
      : server(0, "token", {.notifications_max = most}), client(0, "token", {}) {
    peer = client.connect("127.0.0.1:" + std::to_string(server.listen_tcp("127.0.0.1", 0)), 5000);
  }

  std::shared_ptr<Op> send(const Bytes& bytes) {
    Submission submission = notify_peer(client, bytes, 5000);
    std::shared_ptr<Op> op = submission.op;
    peer->submit(std::move(submission));
    return op;
  }

  Status answer(const Bytes& bytes) {
    auto op = send(bytes);
    CHECK(op->wait(5000));
    CHECK(op->state() == OpState::kDone);
    return Status{op->result().status[0]};
  }

  Endpoint server;
  Endpoint client;
  std::shared_ptr<ClientConnection> peer;
};

bool readable(int fd, int timeout_ms) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, timeout_ms) == 1;
}

TEST(they_come_in_order_and_a_full_inbox_says_so) {
  World world(3);
  CHECK(!readable(world.server.inbox().fd(), 0));
  for (std::uint8_t i = 0; i < 3; i++) CHECK(world.answer({i, i}) == Status::kOk);
  CHECK(world.answer({9}) == Status::kBusy);
  CHECK(world.server.inbox().take(2) == (std::vector<Bytes>{{0, 0}, {1, 1}}));
  CHECK(readable(world.server.inbox().fd(), 0));
  CHECK(world.answer({}) == Status::kOk);
  CHECK(world.server.inbox().take(9) == (std::vector<Bytes>{{2, 2}, {}}));
  CHECK(!readable(world.server.inbox().fd(), 0));
}

TEST(who_reads_none_refuses_them) {
  World world(0);
  CHECK(world.answer({1}) == Status::kRefused);
}

TEST(one_that_is_too_long_is_not_sent) {
  World world(1);
  CHECK(world.answer(Bytes(Inbox::kBytesMax)) == Status::kOk);
  bool thrown = false;
  try {
    world.send(Bytes(Inbox::kBytesMax + 1));
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  CHECK(thrown);
}

TEST(several_readers_share_them_and_close_wakes_all) {
  World world(64);
  std::atomic<int> taken{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; i++) {
    readers.emplace_back([&] {
      while (!over) {
        CHECK(readable(world.server.inbox().fd(), 60'000));
        taken += static_cast<int>(world.server.inbox().take(2).size());
      }
    });
  }
  for (int i = 0; i < 50; i++) CHECK(world.answer({7}) == Status::kOk);
  over = true;
  world.server.close();
  for (auto& reader : readers) reader.join();
  CHECK_EQ(taken + static_cast<int>(world.server.inbox().take(64).size()), 50);
}

}  // namespace

TEST_MAIN()
