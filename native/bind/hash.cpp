// SHA-256 and the two block hash chains for Python.
#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "block_hash.hpp"
#include "buffer.hpp"
#include "sha256.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

using Tokens = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::bytes as_bytes(const Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

nb::bytes sha256_of(nb::handle data) {
  const Buffer buffer(data);
  Digest digest;
  {
    nb::gil_scoped_release released;
    digest = sha256(buffer.bytes(), buffer.size());
  }
  return as_bytes(digest);
}

nb::bytes hmac_of(nb::handle key, nb::handle data) {
  const Buffer secret(key);
  const Buffer buffer(data);
  Digest digest;
  {
    nb::gil_scoped_release released;
    digest = hmac_sha256(secret.bytes(), secret.size(), buffer.bytes(), buffer.size());
  }
  return as_bytes(digest);
}

std::size_t checked_count(const Tokens& tokens, std::int64_t block_size, bool partial) {
  if (block_size < 1) {
    throw std::invalid_argument("block_size must be at least 1 token, not " +
                                std::to_string(block_size));
  }
  return block_count(tokens.shape(0), static_cast<std::size_t>(block_size), partial);
}

// A numpy array that owns what `values` held; `columns` of 0 makes it one-dimensional.
template <class Item, class Element>
nb::ndarray<nb::numpy, Element> as_array(std::vector<Item> values, std::size_t columns) {
  auto kept = std::make_unique<std::vector<Item>>(std::move(values));
  auto data = reinterpret_cast<Element*>(kept->data());
  const std::size_t shape[2] = {kept->size(), columns};
  nb::capsule owner(kept.get(),
                    [](void* p) noexcept { delete static_cast<std::vector<Item>*>(p); });
  kept.release();
  return nb::ndarray<nb::numpy, Element>(data, columns == 0 ? 1 : 2, shape, owner);
}

auto hashes_sha256(const Tokens& tokens, std::int64_t block_size, nb::handle parent, bool partial) {
  const Buffer before(parent);
  if (before.size() != 0 && before.size() != sizeof(Digest)) {
    throw std::invalid_argument("parent must be empty or a digest of 32 bytes, not of " +
                                std::to_string(before.size()));
  }
  std::vector<Digest> digests(checked_count(tokens, block_size, partial));
  {
    nb::gil_scoped_release released;
    block_chain_sha256({before.bytes(), before.size()}, {tokens.data(), tokens.shape(0)},
                       static_cast<std::size_t>(block_size), digests);
  }
  return as_array<Digest, std::uint8_t>(std::move(digests), sizeof(Digest));
}

auto hashes_u64(const Tokens& tokens, std::int64_t block_size, std::uint64_t seed, bool partial) {
  std::vector<std::uint64_t> values(checked_count(tokens, block_size, partial));
  {
    nb::gil_scoped_release released;
    block_chain_u64(seed, {tokens.data(), tokens.shape(0)}, static_cast<std::size_t>(block_size),
                    values);
  }
  return as_array<std::uint64_t, std::uint64_t>(std::move(values), 0);
}

}  // namespace

void bind_hash(nb::module_& m) {
  m.def("sha256", sha256_of, "data"_a);
  m.def("hmac_sha256", hmac_of, "key"_a, "data"_a);
  m.def("block_hashes_sha256", hashes_sha256, nb::arg("tokens").noconvert(), "block_size"_a,
        "parent"_a = nb::bytes("", 0), "partial"_a = false);
  m.def("block_hashes_u64", hashes_u64, nb::arg("tokens").noconvert(), "block_size"_a, "seed"_a = 0,
        "partial"_a = false);
}

}  // namespace moonpool
