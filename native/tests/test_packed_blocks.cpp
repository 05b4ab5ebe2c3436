// An engine's cache against packed objects: bytes, sums, bounds, and layers in order.
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../crc.hpp"
#include "../packed_blocks.hpp"
#include "check.hpp"

namespace {

using moonpool::LayerGate;
using moonpool::LayerMemory;
using moonpool::PackedBlocks;
using Ids = std::vector<std::uint64_t>;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kCount = 9;

Bytes stamped(std::size_t size, int seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return bytes;
}

// Two layers: one dense, one of two pieces that lie apart.
struct Cache {
  Bytes first = Bytes(kCount * 100), second = Bytes(10'000);
  PackedBlocks blocks{{{{first.data(), first.size()}, kCount, 100, {0}, 100},
                       {{second.data(), second.size()}, kCount, 64, {16, 5'000}, 40}}};
};

template <class Call>
bool refuses(Call call) {
  try {
    call();
  } catch (const std::out_of_range&) {
    return true;
  }
  return false;
}

TEST(what_is_unpacked_is_packed_again) {
  Cache cache;
  CHECK(cache.blocks.object_bytes() == 180);
  const Bytes one = stamped(180, 1), two = stamped(180, 2);
  const Ids ids{8, 3};
  const std::array<const std::byte*, 2> from{one.data(), two.data()};
  std::array<std::uint32_t, 2> crcs{};
  std::array<std::uint8_t, 2> good{};
  cache.blocks.sums(from, crcs);
  CHECK(crcs[0] == moonpool::crc32c(one.data(), one.size()));
  CHECK(crcs[1] == moonpool::crc32c(two.data(), two.size()));
  cache.blocks.unpack(ids, from, crcs, good);
  CHECK(good[0] == 1 && good[1] == 1);
  CHECK(std::memcmp(cache.first.data() + 800, one.data(), 100) == 0);
  CHECK(std::memcmp(cache.second.data() + 3 * 64 + 16, two.data() + 100, 40) == 0);
  CHECK(std::memcmp(cache.second.data() + 3 * 64 + 5'000, two.data() + 140, 40) == 0);
  CHECK(cache.first[0] == std::byte{0});
  Bytes back(180), again(180);
  const std::array<std::byte*, 2> to{back.data(), again.data()};
  for (std::size_t layer = 0; layer < 2; ++layer) cache.blocks.pack(layer, ids, to);
  CHECK(back == one);
  CHECK(again == two);
}

TEST(an_object_with_another_sum_is_left_out) {
  Cache cache;
  const Bytes one = stamped(180, 1), two = stamped(180, 2);
  const std::array<const std::byte*, 2> from{one.data(), two.data()};
  std::array<std::uint32_t, 2> crcs{};
  std::array<std::uint8_t, 2> good{};
  cache.blocks.sums(from, crcs);
  crcs[0] ^= 1;
  cache.blocks.unpack(Ids{2, 4}, from, crcs, good);
  CHECK(good[0] == 0 && good[1] == 1);
  CHECK(std::memcmp(cache.first.data() + 400, two.data(), 100) == 0);
  for (std::size_t i = 200; i < 300; ++i) CHECK(cache.first[i] == std::byte{0});
  cache.blocks.unpack(Ids{2, 4}, from, {}, good);
  CHECK(good[0] == 1);
  CHECK(std::memcmp(cache.first.data() + 200, one.data(), 100) == 0);
}

TEST(layers_are_told_in_their_order) {
  Cache cache;
  const Bytes one = stamped(180, 3);
  LayerGate gate;
  bool right = false;
  std::thread waiter([&] {
    gate.wait_for(0);
    gate.wait_for(1);
    right = std::memcmp(cache.second.data() + 16, one.data() + 100, 40) == 0;
  });
  cache.blocks.unpack_layers(Ids{0}, std::array<const std::byte*, 1>{one.data()}, gate);
  waiter.join();
  CHECK(right);
  CHECK(std::memcmp(cache.first.data(), one.data(), 100) == 0);
}

TEST(an_open_gate_lets_everybody_pass) {
  LayerGate gate;
  std::thread waiter([&] { gate.wait_for(1'000); });
  gate.advance(3);
  gate.open();
  waiter.join();
  gate.wait_for(std::numeric_limits<std::size_t>::max() - 1);
}

TEST(nothing_outside_is_touched) {
  Cache cache;
  cache.blocks.check(Ids{0, kCount - 1});
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t id : {kCount, kHuge}) {
    CHECK(refuses([&] { cache.blocks.check(Ids{0, id}); }));
  }
  Bytes memory(1'000);
  const auto refused = [&](std::uint64_t count, std::uint64_t stride, Ids pieces,
                           std::uint64_t piece_bytes) {
    CHECK(refuses([&] {
      PackedBlocks({{{memory.data(), memory.size()}, count, stride, pieces, piece_bytes}});
    }));
  };
  refused(11, 100, {0}, 100);
  refused(10, 100, {1}, 100);
  refused(1, 100, {0}, 1'001);
  refused(1, 100, {kHuge}, 1);
  refused(kHuge, kHuge, {0}, 1);
  refused(2, kHuge, {0}, 100);
  refused(10, 0, {0}, 100);
  refused(0, 100, {0}, 100);
  refused(10, 100, {}, 100);
  PackedBlocks({{{memory.data(), memory.size()}, 10, 100, {0, 50}, 50}});
}

}  // namespace

TEST_MAIN()
