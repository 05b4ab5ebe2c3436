// Objects over the wire under the sanitizers: readers and writers against retire, expire and
// detach.
#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "object_world.hpp"

using namespace moonpool;

TEST(readers_see_one_value_or_none) {
  World world;
  std::atomic<std::uint64_t> sequence{1};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; t++) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 20; i++) {
        std::uint64_t seq = sequence++;
        Bytes value(random() % 300'000, static_cast<std::uint8_t>(seq));
        Stored stored = world.put(value, seq);
        CHECK(stored.ok());
        Bytes to(300'000);
        auto reading = world.read(stored, to);
        if (i % 2) world.retire(stored);
        reading->wait(-1);
        const OpResult& result = reading->result();
        CHECK(reading->state() == OpState::kDone);
        if (result.status[0] == code(Status::kOk)) {
          CHECK(std::equal(value.begin(), value.end(), to.begin()));
        } else {
          CHECK_EQ(result.status[0], code(Status::kMoved));
          CHECK(i % 2 == 1);
        }
        if (i % 2 == 0) world.retire(stored);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  world.agent->drain();
  CHECK_EQ(world.agent->usage().free_slots, 64);
}

TEST(detach_while_reading_closes_the_windows) {
  World world;
  Bytes value(6 << 20, 5);
  Stored stored = world.put(value, 1);
  CHECK(stored.ok());
  for (int i = 0; i < 10; i++) {
    Bytes to(value.size());
    auto first = world.read(stored, to), second = world.read(stored, to);
    first->wait(i % 3);
    CHECK(world.server.detach(*world.agent));
    first->wait(-1);
    second->wait(-1);
    world.server.attach(world.agent);
  }
  world.server.close();
  CHECK(world.agent->close() == Status::kOk);
}

TEST(a_client_gone_in_mid_put_leaves_nothing) {
  World world;
  Bytes value(6 << 20, 5);
  for (int i = 0; i < 5; i++) {
    Endpoint other(0, "token", {});
    auto peer = other.connect(world.peer->address(), 5000);
    std::swap(peer, world.peer);
    std::thread closer([&] { other.close(); });
    Stored stored = world.put(value, static_cast<std::uint64_t>(i));
    closer.join();
    std::swap(peer, world.peer);
    while (world.server.counters().connections_open.load() > 1) std::this_thread::yield();
    CHECK_EQ(world.agent->usage().writing, 0);
    if (stored.ok()) world.retire(stored);
    for (std::uint32_t slot = 0; slot < 64; slot++) {
      auto inventory = world.agent->inventory(slot, 1);
      if (!inventory.slot.empty()) {
        Status status;
        world.agent->retire(inventory.slot, inventory.generation, 0, 0, {&status, 1});
      }
    }
    world.agent->drain();
  }
  CHECK_EQ(world.agent->usage().free_slots, 64);
}

TEST_MAIN()
