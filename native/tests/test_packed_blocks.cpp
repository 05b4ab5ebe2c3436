// An engine's cache against packed objects: bytes, sums, bounds, and layers in order.
#include <array>
#include <cstring>
#include <limits>
#include <span>
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

std::vector<std::uint32_t> sums(std::span<const std::byte* const> objects, std::size_t size = 180) {
  std::vector<std::uint32_t> found;
  for (const std::byte* object : objects) found.push_back(moonpool::crc32c(object, size));
  return found;
}

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
  const auto crcs = sums(from);
  std::array<std::uint8_t, 2> good{};
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

TEST(it_is_told_which_objects_have_another_sum) {
  for (const bool by_layer : {false, true}) {
    Cache cache;
    const Bytes one = stamped(180, 1), two = stamped(180, 2);
    const std::array<const std::byte*, 2> from{one.data(), two.data()};
    auto crcs = sums(from);
    std::array<std::uint8_t, 2> good{};
    const auto unpack = [&](std::span<const std::uint32_t> expected) {
      LayerGate gate;
      if (by_layer) return cache.blocks.unpack_layers(Ids{2, 4}, from, expected, good, gate);
      cache.blocks.unpack(Ids{2, 4}, from, expected, good);
    };
    crcs[0] ^= 1;
    unpack(crcs);
    CHECK(good[0] == 0 && good[1] == 1);
    CHECK(std::memcmp(cache.first.data() + 400, two.data(), 100) == 0);
    unpack(std::span(crcs).first(1));
    CHECK(good[0] == 0 && good[1] == 1);
    unpack({});
    CHECK(good[0] == 1 && good[1] == 1);
    CHECK(std::memcmp(cache.first.data() + 200, one.data(), 100) == 0);
  }
}

// More than the caches are for: another way to copy.
TEST(what_is_large_arrives_too) {
  constexpr std::size_t kLayer = 3 << 20;
  Bytes memory(2 * kLayer), other(2 * kLayer);
  PackedBlocks blocks({{{memory.data(), memory.size()}, 2, kLayer, {0}, kLayer},
                       {{other.data(), other.size()}, 2, kLayer, {7}, kLayer - 7}});
  std::vector<Bytes> objects;
  std::vector<const std::byte*> from;
  std::vector<std::uint64_t> ids;
  for (std::uint64_t i = 0; i < 4; ++i) {
    objects.push_back(stamped(blocks.object_bytes(), static_cast<int>(i)));
    from.push_back(objects.back().data());
    ids.push_back(i % 2);
  }
  const auto crcs = sums(from, blocks.object_bytes());
  std::vector<std::uint8_t> good(4);
  LayerGate gate;
  blocks.unpack_layers(ids, from, crcs, good, gate);
  CHECK(good == std::vector<std::uint8_t>(4, 1));
  for (const std::size_t i : {2, 3}) {
    const std::size_t at = (i - 2) * kLayer;
    CHECK(std::memcmp(memory.data() + at, from[i], kLayer) == 0);
    CHECK(std::memcmp(other.data() + at + 7, from[i] + kLayer, kLayer - 7) == 0);
  }
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
  std::array<std::uint8_t, 1> good{};
  cache.blocks.unpack_layers(Ids{0}, std::array<const std::byte*, 1>{one.data()}, {}, good, gate);
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
