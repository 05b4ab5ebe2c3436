// Rows packed by the server, under the sanitizers: of objects in one part and in several, while
// objects are retired, at deadlines, and asked for by a peer that lies.
#include <atomic>
#include <random>
#include <thread>

#include "object_world.hpp"

using namespace moonpool;

namespace {

constexpr std::uint32_t kRow = 656, kUnit = 64, kLayers = 3;

// Row (unit, layer, inside) of a value.
std::uint8_t stamp(std::uint32_t unit, std::uint32_t layer, std::uint32_t inside,
                   std::uint32_t at) {
  return static_cast<std::uint8_t>(unit * 101 + layer * 59 + inside * 7 + at * 3);
}

Bytes value_of(std::uint32_t unit, std::uint32_t tokens = kUnit) {
  Bytes value(std::size_t{kLayers} * tokens * kRow);
  for (std::uint32_t layer = 0; layer < kLayers; layer++) {
    for (std::uint32_t inside = 0; inside < tokens; inside++) {
      for (std::uint32_t at = 0; at < kRow; at++) {
        value[(std::size_t{layer} * tokens + inside) * kRow + at] = stamp(unit, layer, inside, at);
      }
    }
  }
  return value;
}

struct Wanted {
  std::vector<std::uint32_t> slots, layers, counts, positions;
  std::vector<std::uint64_t> generations, offsets, strides;

  void add(const Stored& stored, std::uint32_t tokens = kUnit) {
    slots.push_back(stored.slot());
    generations.push_back(stored.generation());
    offsets.push_back(0);
    strides.push_back(std::uint64_t{tokens} * kRow);
  }
  RowsWanted list() const {
    return {kRow, kUnit, slots, generations, offsets, strides, layers, counts, positions};
  }
};

std::shared_ptr<Op> gather(World& world, const Wanted& wanted, Bytes& to) {
  Submission submission = gather_rows(world.client, incarnation_of(*world.agent), wanted.list(),
                                      {to.data(), to.size()}, -1, true);
  auto op = submission.op;
  world.peer->submit(std::move(submission));
  return op;
}

bool holds(const Wanted& wanted, const Bytes& out) {
  std::size_t done = 0;
  for (std::size_t i = 0; i < wanted.layers.size(); i++) {
    for (std::uint32_t n = 0; n < wanted.counts[i]; n++, done++) {
      const std::uint32_t position = wanted.positions[done];
      for (std::uint32_t at = 0; at < kRow; at++) {
        if (out[done * kRow + at] !=
            stamp(position / kUnit, wanted.layers[i], position % kUnit, at)) {
          return false;
        }
      }
    }
  }
  return true;
}

void ask_for(Wanted& wanted, std::mt19937& random, std::uint32_t count) {
  wanted.layers.clear(), wanted.counts.clear(), wanted.positions.clear();
  for (std::uint32_t layer = 0; layer < kLayers; layer++) {
    wanted.layers.push_back(layer);
    wanted.counts.push_back(count);
    for (std::uint32_t i = 0; i < count; i++) {
      wanted.positions.push_back(random() % (kUnit * wanted.slots.size()));
    }
  }
}

}  // namespace

TEST(rows_of_several_layers_come_in_one_frame) {
  World world;
  Wanted wanted;
  for (std::uint32_t unit = 0; unit < 8; unit++) {
    wanted.add(world.put(value_of(unit), unit + 1));
  }
  std::mt19937 random(1);
  for (const std::uint32_t count : {0u, 1u, 17u, 700u, 3000u}) {
    ask_for(wanted, random, count);
    Bytes out(std::size_t{kLayers} * count * kRow);
    auto op = gather(world, wanted, out);
    op->wait(-1);
    CHECK_EQ(op->state(), OpState::kDone);
    for (const auto status : op->result().status) CHECK_EQ(status, code(Status::kOk));
    CHECK(holds(wanted, out));
  }
  // All rows of a layer in order: sent from where they lie.
  wanted.layers = {2}, wanted.counts = {8 * kUnit}, wanted.positions.resize(8 * kUnit);
  for (std::uint32_t i = 0; i < 8 * kUnit; i++) wanted.positions[i] = i;
  Bytes out(std::size_t{8} * kUnit * kRow);
  auto op = gather(world, wanted, out);
  op->wait(-1);
  CHECK(holds(wanted, out));
  // Long and short runs that cross objects, scattered rows before, between and after them.
  wanted.positions.clear();
  for (int part = 0; part < 12; part++) {
    for (int i = 0; i < 40; i++) wanted.positions.push_back(random() % (8 * kUnit));
    const std::uint32_t first = random() % (6 * kUnit), count = random() % (2 * kUnit);
    for (std::uint32_t i = 0; i < count; i++) wanted.positions.push_back(first + i);
  }
  wanted.counts = {static_cast<std::uint32_t>(wanted.positions.size())};
  out.assign(wanted.positions.size() * kRow, 0);
  op = gather(world, wanted, out);
  op->wait(-1);
  CHECK(holds(wanted, out));
}

TEST(rows_of_an_object_in_several_parts) {
  World world;
  // Full of 256 KiB, then every other one gone: a larger object finds no hole that holds it whole.
  std::vector<Stored> small;
  for (std::uint64_t seq = 1; seq <= 60; seq++) {
    Stored stored = world.put(Bytes(256 << 10), seq);
    if (!stored.ok()) break;
    small.push_back(stored);
  }
  CHECK(small.size() >= 26);
  for (std::size_t i = 0; i < small.size(); i += 2) world.retire(small[i]);
  constexpr std::uint32_t kTokens = 1500;
  Stored stored = world.put(value_of(0, kTokens), 100);
  CHECK(stored.ok());
  auto window = world.agent->open_read(stored.slot(), stored.generation(), 0, kWholeObject);
  CHECK(window.parts.size() > 1);
  world.agent->close_read(stored.slot(), stored.generation());
  Wanted wanted;
  wanted.add(stored, kTokens);
  std::mt19937 random(2);
  wanted.layers = {0, 2}, wanted.counts = {500, 500};
  for (int i = 0; i < 1000; i++) wanted.positions.push_back(random() % kTokens);
  Bytes out(1000 * kRow);
  Submission submission =
      gather_rows(world.client, incarnation_of(*world.agent),
                  {kRow, kTokens, wanted.slots, wanted.generations, wanted.offsets, wanted.strides,
                   wanted.layers, wanted.counts, wanted.positions},
                  {out.data(), out.size()}, -1, true);
  auto op = submission.op;
  world.peer->submit(std::move(submission));
  op->wait(-1);
  CHECK_EQ(op->result().status[0], code(Status::kOk));
  for (std::size_t i = 0; i < 1000; i++) {
    const std::uint32_t layer = i < 500 ? 0 : 2, inside = wanted.positions[i];
    for (std::uint32_t at = 0; at < kRow; at++) {
      CHECK_EQ(out[i * kRow + at], stamp(0, layer, inside, at));
    }
  }
}

TEST(gathers_see_whole_objects_or_are_told) {
  World world;
  std::atomic<std::uint64_t> sequence{1};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; t++) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 15; i++) {
        Wanted wanted;
        std::vector<Stored> stored;
        for (std::uint32_t unit = 0; unit < 2; unit++) {
          stored.push_back(world.put(value_of(unit), sequence++));
          CHECK(stored.back().ok());
          wanted.add(stored.back());
        }
        ask_for(wanted, random, 900);
        Bytes out(std::size_t{kLayers} * 900 * kRow);
        auto op = gather(world, wanted, out);
        if (i % 2) world.retire(stored[i % 4 / 2]);
        op->wait(-1);
        CHECK_EQ(op->state(), OpState::kDone);
        bool all = true;
        for (const auto status : op->result().status) {
          all = all && status == code(Status::kOk);
          CHECK(status == code(Status::kOk) || (status == code(Status::kMoved) && i % 2));
        }
        if (all) CHECK(holds(wanted, out));
        for (const Stored& one : stored) world.retire(one);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(rows_outside_an_object_are_refused_one_layer_at_a_time) {
  World world;
  Wanted wanted;
  wanted.add(world.put(value_of(0), 1));
  wanted.layers = {0, 1, 9}, wanted.counts = {1, 1, 1}, wanted.positions = {0, kUnit, 0};
  Bytes out(3 * kRow);
  auto op = gather(world, wanted, out);
  op->wait(-1);
  CHECK_EQ(op->result().status[0], code(Status::kOk));
  CHECK_EQ(op->result().status[1], code(Status::kBounds));  // no such unit
  CHECK_EQ(op->result().status[2], code(Status::kBounds));  // no such layer in the object
  for (const std::uint64_t offset :
       {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{kLayers * kUnit * kRow}}) {
    wanted.offsets = {offset};
    op = gather(world, wanted, out);
    op->wait(-1);
    CHECK_EQ(op->result().status[0], code(Status::kBounds));
  }
  wanted.offsets = {0}, wanted.strides = {1ull << 63}, wanted.layers = {0, 1, 2};
  op = gather(world, wanted, out);
  op->wait(-1);
  CHECK_EQ(op->result().status[0], code(Status::kOk));
  CHECK_EQ(op->result().status[2], code(Status::kBounds));
  // The last layer that a number can name, in an object whose layers all lie in one place.
  wanted.strides = {0}, wanted.layers = {0, 1, ~0u};
  op = gather(world, wanted, out);
  op->wait(-1);
  CHECK_EQ(op->result().status[0], code(Status::kOk));
  CHECK_EQ(op->result().status[2], code(Status::kBounds));
  CHECK_THROWS(gather_rows(world.client, incarnation_of(*world.agent), wanted.list(),
                           {out.data(), kRow}, -1, true),
               std::invalid_argument);
}

TEST(a_gather_too_long_for_a_frame_is_refused_before_it_is_sent) {
  World world;
  Wanted wanted;
  wanted.add(world.put(value_of(0), 1));
  wanted.layers = {0}, wanted.counts = {17u << 20}, wanted.positions.resize(17u << 20);
  RowsWanted list = wanted.list();
  list.row_bytes = 1;
  Bytes out(17u << 20);
  CHECK_THROWS(gather_rows(world.client, incarnation_of(*world.agent), list,
                           {out.data(), out.size()}, -1, true),
               std::invalid_argument);
}

TEST(a_gather_that_lies_about_itself_ends_its_connection) {
  World world;
  Wanted wanted;
  wanted.add(world.put(value_of(0), 1));
  wanted.layers = {0}, wanted.counts = {2}, wanted.positions = {0, 1};
  for (const std::size_t word : {0u, 1u, 2u, 3u}) {  // row_bytes, unit_tokens, units, positions
    auto peer = world.client.connect(world.peer->address(), 5000);
    Bytes out(2 * kRow);
    Submission submission = gather_rows(world.client, incarnation_of(*world.agent), wanted.list(),
                                        {out.data(), out.size()}, 2000, true);
    const std::uint32_t lie = word < 2 ? 0 : 0x7fffffff;
    std::memcpy(submission.meta.data() + word * 4, &lie, 4);
    auto op = submission.op;
    peer->submit(std::move(submission));
    op->wait(-1);
    CHECK_EQ(op->state(), OpState::kFailed);
  }
}

TEST_MAIN()
