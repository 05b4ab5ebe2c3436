// Binds the router's prefix index, with the feed of engines' events on top.
#include "prefix_index.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "block_hash.hpp"
#include "column_args.hpp"
#include "engine_feed.hpp"
#include "kv_events.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

using Hashes = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Depths = nb::ndarray<nb::numpy, std::int64_t>;

constexpr std::size_t kShort = 256;  // blocks
constexpr std::size_t kWeights = 6;  // fixed, then a token: uncached, device, host, disk, pool

template <class Array>
std::span<const typename Array::Scalar> span_of(const Array& array) {
  return {array.data(), array.size()};
}

template <class T>
nb::ndarray<nb::numpy, T> owned(std::unique_ptr<T[]> values, std::size_t rows,
                                std::size_t columns) {
  const std::size_t shape[2] = {rows, columns};
  nb::capsule owner(values.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
  T* const data = values.release();
  if (columns == 0) return nb::ndarray<nb::numpy, T>(data, 1, shape, owner);
  return nb::ndarray<nb::numpy, T>(data, 2, shape, owner);
}

struct Index {
  explicit Index(std::size_t bytes_max) : index(bytes_max), feed(index), reader(index, feed) {}

  PrefixIndex index;
  EngineFeed feed;
  EventReader reader;
  std::mutex reading;  // the reader keeps its buffers between messages

  // Events are short: giving the GIL away would cost more than they take.
  void store(std::uint32_t place, std::uint32_t slot, nb::handle hashes, std::uint64_t parent) {
    const ColumnArg<std::uint64_t> run(hashes, "hashes");
    std::optional<nb::gil_scoped_release> released;
    if (run.size() > kShort) released.emplace();
    index.store(place, slot, run, parent);
  }

  std::size_t remove(std::uint32_t place, std::uint32_t slot, nb::handle hashes) {
    const ColumnArg<std::uint64_t> run(hashes, "hashes");
    std::optional<nb::gil_scoped_release> released;
    if (run.size() > kShort) released.emplace();
    return index.remove(place, slot, run);
  }

  void drop(std::uint32_t place, std::optional<std::uint32_t> slot) {
    nb::gil_scoped_release released;
    if (slot) return index.drop(place, *slot);
    index.drop_place(place);
    feed.forget(place);
  }

  auto find(const Hashes& hashes, const Places& places) {
    const std::size_t n = places.size();
    auto depths = std::make_unique<std::int64_t[]>(3 * n);
    std::int64_t pool = 0;
    index.find(span_of(hashes), span_of(places), depths.get(), depths.get() + n,
               depths.get() + 2 * n, &pool);
    return std::tuple(owned(std::move(depths), 3, n), pool);
  }

  nb::dict holders(const Hashes& hashes) {
    nb::dict found;
    for (const auto& [place, depth] : index.holders(span_of(hashes))) {
      found[nb::int_(place)] = depth;
    }
    return found;
  }

  auto route(const Tokens& tokens, std::uint64_t block_size, std::uint64_t seed,
             const Places& places, const Weights& weights) {
    const std::size_t n = places.size();
    if (block_size < 1) throw std::invalid_argument("block_size must be at least 1");
    if (weights.shape(0) != n || weights.shape(1) != kWeights) {
      throw std::invalid_argument("weights must be six for each place");
    }
    const std::size_t blocks = block_count(tokens.size(), block_size, false);
    auto hashes = std::make_unique<std::uint64_t[]>(blocks);
    auto depths = std::make_unique<std::int64_t[]>(3 * n);
    auto costs = std::make_unique<double[]>(n);
    std::int64_t pool = 0;
    {
      nb::gil_scoped_release released;
      block_chain_u64(seed, span_of(tokens), block_size, {hashes.get(), blocks});
      index.find({hashes.get(), blocks}, span_of(places), depths.get(), depths.get() + n,
                 depths.get() + 2 * n, &pool);
      score(tokens.size(), block_size, n, depths.get(), pool, weights.data(), costs.get());
    }
    return std::tuple(owned(std::move(costs), n, 0), owned(std::move(depths), 3, n), pool,
                      owned(std::move(hashes), blocks, 0));
  }

  // Depths in blocks become tokens in place, and with the weights a cost.
  static void score(std::size_t tokens, std::uint64_t block_size, std::size_t places,
                    std::int64_t* depths, std::int64_t& pool, const double* weights,
                    double* costs) {
    const auto covered = [&](std::int64_t blocks) {
      // Of a prompt that is held whole the last block is computed again.
      const auto held = static_cast<std::int64_t>(static_cast<std::uint64_t>(blocks) * block_size);
      return held == static_cast<std::int64_t>(tokens) && held != 0
                 ? held - static_cast<std::int64_t>(block_size)
                 : held;
    };
    pool = covered(pool);
    for (std::size_t i = 0; i < places; i++) {
      std::int64_t* const at[3] = {depths + i, depths + places + i, depths + 2 * places + i};
      for (std::int64_t* const depth : at) *depth = covered(*depth);
      const std::int64_t from_pool = std::max<std::int64_t>(0, pool - *at[2]);
      const double amounts[kWeights] = {
          1.0,
          static_cast<double>(static_cast<std::int64_t>(tokens) - *at[2] - from_pool),
          static_cast<double>(*at[0]),
          static_cast<double>(*at[1] - *at[0]),
          static_cast<double>(*at[2] - *at[1]),
          static_cast<double>(from_pool)};
      costs[i] = 0;
      for (std::size_t k = 0; k < kWeights; k++) costs[i] += weights[i * kWeights + k] * amounts[k];
    }
  }

  auto held_each(const Places& places, std::uint32_t slot) const {
    auto held = std::make_unique<std::int64_t[]>(places.size());
    index.held_each(span_of(places), slot, held.get());
    return owned(std::move(held), places.size(), 0);
  }

  auto apply(nb::handle message, nb::handle places, std::uint64_t model_seed,
             std::uint32_t block_size, std::uint64_t walks_max) {
    const BytesArg bytes(message, "message");
    const ColumnArg<std::uint32_t> of_ranks(places, "places");
    std::vector<Account> accounts;
    EventCounts counts;
    {
      nb::gil_scoped_release released;
      const std::lock_guard one(reading);
      counts = reader.apply(bytes, {of_ranks, model_seed, block_size, walks_max}, accounts);
    }
    nb::list found;
    for (const Account& account : accounts) {
      auto differ = std::make_unique<std::uint8_t[]>(kDigestRanges);
      std::copy(account.differ.begin(), account.differ.end(), differ.get());
      found.append(
          nb::make_tuple(account.place, account.slot, owned(std::move(differ), kDigestRanges, 0)));
    }
    return nb::make_tuple(counts.events, counts.stored, counts.removed, counts.unknown,
                          counts.orphaned, counts.cleared, counts.ignored, counts.malformed,
                          counts.mismatched, counts.block_size, counts.groups, counts.renewals,
                          counts.renewed, found, counts.walks);
  }

  nb::dict stat() const {
    const IndexCounts counts = index.counts();
    nb::dict stat;
    stat["blocks"] = counts.blocks;
    stat["entries"] = counts.entries;
    stat["sets"] = counts.sets;
    stat["memory_bytes"] = counts.memory_bytes;
    stat["evicted"] = counts.evicted;
    stat["torn"] = counts.torn;
    stat["orphan_blocks"] = feed.orphan_blocks();
    stat["orphans_lost"] = feed.orphans_lost();
    stat["aliases"] = feed.aliases();
    return stat;
  }
};

}  // namespace

void bind_prefix_index(nb::module_& m) {
  nb::exception<BadMessage>(m, "BadMessage", PyExc_ValueError);
  nb::class_<Index>(m, "PrefixIndex")
      .def(nb::init<std::size_t>(), "bytes_max"_a)
      .def("__len__", [](const Index& self) { return self.index.counts().blocks; })
      .def("store", &Index::store, "place"_a, "slot"_a, "hashes"_a, "parent"_a = 0)
      .def("remove", &Index::remove, "place"_a, "slot"_a, "hashes"_a)
      .def("drop", &Index::drop, "place"_a, "slot"_a = nb::none())
      .def(
          "drop_slot", [](Index& self, std::uint32_t slot) { self.index.drop_slot(slot); },
          "slot"_a)
      .def("find", &Index::find, nb::arg("hashes").noconvert(), nb::arg("places").noconvert())
      .def("holders", &Index::holders, nb::arg("hashes").noconvert())
      .def("route", &Index::route, nb::arg("tokens").noconvert(), "block_size"_a, "seed"_a,
           nb::arg("places").noconvert(), nb::arg("weights").noconvert())
      .def("apply", &Index::apply, "message"_a, "places"_a, "model_seed"_a, "block_size"_a,
           "walks_max"_a)
      .def(
          "held",
          [](const Index& self, std::uint32_t place, std::uint32_t slot) {
            return self.index.held(place, slot);
          },
          "place"_a, "slot"_a)
      .def("held_each", &Index::held_each, nb::arg("places").noconvert(), "slot"_a)
      .def_prop_ro("evicted", [](const Index& self) { return self.index.evicted(); })
      .def("stat", &Index::stat);
  m.def(
      "prefix_seed",
      [](std::string_view model, std::string_view space, std::string_view adapter) {
        return prefix_seed(model, space, adapter);
      },
      "model"_a, "namespace"_a = "", "adapter"_a = "");
  m.def("group_seed", &group_seed, "seed"_a, "group"_a);
}

}  // namespace moonpool
