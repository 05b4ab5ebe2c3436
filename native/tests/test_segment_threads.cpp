// Many threads on one segment: readers and pins against retire, drain and reuse.
//
// Each client has mappings of its own, so ThreadSanitizer watches what threads of one process share
// (the agent, a client's pins), not the one-sided copies, which race with reuse by design and are
// judged by the slot's word afterwards.
#include <atomic>
#include <thread>

#include "segment_fixture.hpp"

using namespace moonpool;
using namespace moonpool::check;

namespace {

// The last objects sealed, for readers to pick from: a stamp that repeats in every byte.
struct Board {
  struct Entry {
    Claimed at;
    std::uint64_t size;
    std::uint8_t stamp;
  };
  std::mutex mutex;
  std::vector<Entry> entries;

  void post(const Entry& entry) {
    const std::lock_guard lock(mutex);
    entries.push_back(entry);
  }
  bool pick(std::mt19937_64& random, bool take, Entry& out) {
    const std::lock_guard lock(mutex);
    if (entries.empty()) return false;
    std::swap(entries[random() % entries.size()], entries.back());
    out = entries.back();
    if (take) entries.pop_back();
    return true;
  }
};

bool all_are(const std::byte* bytes, std::size_t size, std::uint8_t stamp) {
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes[i] != std::byte{stamp}) return false;
  }
  return true;
}

// Puts `puts` objects with its own client, retiring random ones whenever the segment is full.
void write_objects(SegmentAgent& agent, Board& board, std::uint64_t seed, int puts) {
  std::mt19937_64 random(seed);
  const auto client = SegmentClient::open_fd(agent.fd());
  std::vector<std::byte> bytes(3000);
  for (int i = 0; i < puts;) {
    const std::uint64_t size = random() % bytes.size();
    const Claimed at = claim(agent, size, {.writer = client.get()});
    Board::Entry old;
    if (at.status == Status::kNoSpace || at.status == Status::kNoSlot) {
      if (board.pick(random, true, old)) retire(agent, old.at);
      std::this_thread::yield();
      continue;
    }
    CHECK_EQ(at.status, Status::kOk);
    const auto stamp = static_cast<std::uint8_t>(random());
    std::fill(bytes.begin(), bytes.end(), std::byte{stamp});
    std::uint32_t crc = 0;
    CHECK_EQ(client->write(at.slot, at.generation, bytes.data(), size, crc), Status::kOk);
    CHECK_EQ(seal(agent, at, 0, crc), Status::kOk);
    board.post({at, size, stamp});
    ++i;
  }
}

void read_objects(SegmentAgent& agent, Board& board, std::uint64_t seed,
                  const std::atomic<bool>& done) {
  std::mt19937_64 random(seed);
  const auto client = SegmentClient::open_fd(agent.fd());
  std::vector<std::byte> bytes(3000);
  Board::Entry entry;
  while (!done.load()) {
    if (!board.pick(random, false, entry)) continue;
    const std::int64_t got = client->read(entry.at.slot, entry.at.generation, bytes.data(),
                                          bytes.size(), random() % 2 == 0);
    if (got >= 0) {
      CHECK_EQ(got, entry.size);
      CHECK(all_are(bytes.data(), entry.size, entry.stamp));
    } else {
      CHECK_EQ(got, failure(Status::kMoved));
    }
  }
}

void pin_objects(SegmentAgent& agent, Board& board, std::uint64_t seed,
                 const std::atomic<bool>& done) {
  std::mt19937_64 random(seed);
  const auto client = SegmentClient::open_fd(agent.fd());
  Board::Entry entry;
  while (!done.load()) {
    if (!board.pick(random, false, entry)) continue;
    const Pinned pinned = client->pin(entry.at.slot, entry.at.generation, false);
    if (pinned.status != Status::kOk) continue;
    CHECK_EQ(pinned.size, entry.size);
    for (int look = 0; look < 4; ++look) {
      CHECK(all_are(pinned.data, pinned.size, entry.stamp));
      std::this_thread::yield();
    }
    client->unpin(pinned.pin);
  }
}

void read_windows(SegmentAgent& agent, Board& board, std::uint64_t seed,
                  const std::atomic<bool>& done) {
  std::mt19937_64 random(seed);
  Board::Entry entry;
  while (!done.load()) {
    if (!board.pick(random, false, entry)) continue;
    const Window window = agent.open_read(entry.at.slot, entry.at.generation, 0, kWholeObject);
    if (window.status != Status::kOk) continue;
    for (const Part& part : window.parts) CHECK(all_are(part.data, part.bytes, entry.stamp));
    agent.close_read(entry.at.slot, entry.at.generation);
  }
}

}  // namespace

TEST(nobody_sees_anothers_bytes) {
  const std::uint64_t seed = seeded()();
  const auto agent = SegmentAgent::create(std::nullopt, small_spec(32 << 10, 24));
  Board board;
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  readers.emplace_back([&] { read_objects(*agent, board, seed + 1, done); });
  readers.emplace_back([&] { pin_objects(*agent, board, seed + 2, done); });
  readers.emplace_back([&] { read_windows(*agent, board, seed + 3, done); });
  std::vector<std::thread> writers;
  for (int i = 0; i < 2; ++i) {
    writers.emplace_back([&, i] { write_objects(*agent, board, seed + 10 + i, 1500); });
  }
  for (std::thread& thread : writers) thread.join();
  done.store(true);
  for (std::thread& thread : readers) thread.join();
  for (const Board::Entry& entry : board.entries) retire(*agent, entry.at);
  agent->drain();
  CHECK_EQ(agent->usage().free_bytes, agent->geometry().data_bytes);
  CHECK_EQ(agent->usage().free_slots, 24);
}

TEST(close_waits_for_calls_under_way) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const Claimed at = put(*agent, 3000, 1);
  for (int round = 0; round < 50; ++round) {
    const auto client = SegmentClient::open_fd(agent->fd());
    std::thread reader([&] {
      std::vector<std::byte> bytes(3000);
      try {
        while (client->read(at.slot, at.generation, bytes.data(), 3000, true) == 3000) {
        }
      } catch (const SegmentClosed&) {
      }
    });
    std::this_thread::yield();
    CHECK_EQ(client->close(), Status::kOk);
    reader.join();
  }
}

TEST(pins_of_one_client_from_many_threads) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 100, 4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 2000; ++n) {
        const Pinned pinned = client->pin(at.slot, at.generation, true);
        CHECK_EQ(pinned.status, Status::kOk);
        client->unpin(pinned.pin);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(client->pins(), 0);
  CHECK_EQ(agent->usage().pins, 0);
}

TEST_MAIN()
