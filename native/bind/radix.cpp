// Binds the prefix tree. Every call is a few microseconds of one thread's own structure, so the GIL
// stays held: it is what makes a tree safe to use from several threads.
#include "radix.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "column_args.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

constexpr std::uint32_t kNone = RadixTree::kNone;

// Token ids as 32-bit integers of either sign, looked at in place.
class TokensArg : HeldBuffer {
 public:
  explicit TokensArg(nb::handle from) : HeldBuffer(from, "tokens", PyBUF_ND | PyBUF_FORMAT) {
    const std::string_view format = view_.format == nullptr ? "B" : view_.format;
    if (view_.ndim == 1 && view_.itemsize == 4 && format.size() == 1 &&
        std::string_view("iIlL").find(format[0]) != std::string_view::npos) {
      return;
    }
    const std::string text =
        "tokens: a one-dimensional contiguous int32 or uint32 array is "
        "needed, not format " +
        std::string(format) + " in " + std::to_string(view_.ndim) + " dimensions";
    throw nb::type_error(text.c_str());
  }
  std::span<const std::uint32_t> first(std::size_t count) const {
    const std::size_t all = static_cast<std::size_t>(view_.len) / 4;
    return {static_cast<const std::uint32_t*>(view_.buf), std::min(count, all)};
  }
  std::size_t size() const { return static_cast<std::size_t>(view_.len) / 4; }
};

std::string_view view(const nb::bytes& text) { return {text.c_str(), text.size()}; }

// What a match or an insert found, held until release() or its own end.
class Lease {
 public:
  // Takes over the hold on `node` before anything that can fail: an error below releases it.
  Lease(std::shared_ptr<RadixTree> tree, std::uint32_t node) : Lease(node, std::move(tree)) {
    pages_.resize(tree_->path_pages(node));
    hashes_.resize(pages_.size());
    tree_->path(node_, pages_, hashes_);
  }
  Lease(Lease&& other) noexcept = default;
  Lease& operator=(Lease&&) = delete;
  ~Lease() { release(); }

  bool held() const { return tree_ != nullptr; }
  bool of(const std::shared_ptr<RadixTree>& tree) const { return tree_ == tree; }
  void touch() {
    if (tree_) tree_->touch(node_);
  }
  bool release() {
    if (!tree_) return false;
    std::exchange(tree_, nullptr)->release(node_);
    return true;
  }
  std::uint32_t node() const { return node_; }
  const std::vector<std::int32_t>& pages() const { return pages_; }
  const std::vector<std::uint64_t>& hashes() const { return hashes_; }

 private:
  Lease(std::uint32_t node, std::shared_ptr<RadixTree>&& tree) noexcept
      : tree_(std::move(tree)), node_(node) {}

  std::shared_ptr<RadixTree> tree_;
  std::uint32_t node_;
  std::vector<std::int32_t> pages_;
  std::vector<std::uint64_t> hashes_;
};

template <class T>
auto view_of(const std::vector<T>& values, nb::handle owner) {
  return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, owner);
}

struct Tree {
  std::shared_ptr<RadixTree> tree;

  Tree(std::int64_t page_size, const std::string& order, std::size_t events_max)
      : tree(std::make_shared<RadixTree>(checked(page_size), order_named(order), events_max)) {}

  static std::size_t checked(std::int64_t page_size) {
    if (page_size >= 1 && page_size <= (1 << 20)) return static_cast<std::size_t>(page_size);
    throw std::invalid_argument("page_size is 1 to 1048576 tokens, not " +
                                std::to_string(page_size));
  }
  static RadixOrder order_named(const std::string& name) {
    if (name == "used") return RadixOrder::kUsed;
    if (name == "created") return RadixOrder::kCreated;
    if (name == "uses") return RadixOrder::kUses;
    if (name == "external") return RadixOrder::kExternal;
    throw std::invalid_argument("order is used, created, uses or external, not " + name);
  }

  Lease match(const nb::bytes& space, std::uint64_t seed, nb::handle tokens, std::size_t tokens_max,
              bool touch) {
    const TokensArg ids(tokens);
    return Lease(tree, tree->match(view(space), seed, ids.first(tokens_max), touch).node);
  }

  std::size_t lookup(const nb::bytes& space, nb::handle tokens, std::size_t tokens_max) const {
    const TokensArg ids(tokens);
    return tree->lookup(view(space), ids.first(tokens_max));
  }

  nb::tuple insert(const nb::bytes& space, std::uint64_t seed, nb::handle tokens, nb::handle pages,
                   Lease* owner) {
    const TokensArg ids(tokens);
    const ColumnArg<std::int32_t> places(pages, "pages");
    if (ids.size() / tree->page_size() < places.size()) {
      throw std::invalid_argument(std::to_string(places.size()) + " pages of " +
                                  std::to_string(tree->page_size()) + " tokens, but only " +
                                  std::to_string(ids.size()) + " tokens");
    }
    const std::uint32_t held = owner != nullptr && owner->of(tree) ? owner->node() : kNone;
    const auto [node, known] = tree->insert(view(space), seed, ids.first(ids.size()), places, held);
    return nb::make_tuple(Lease(tree, node), known);
  }

  std::vector<nb::tuple> records(const std::vector<RadixEvents::Record>& from) const {
    std::vector<nb::tuple> out;
    for (const RadixEvents::Record& one : from) {
      out.push_back(nb::make_tuple(static_cast<int>(one.kind), one.first,
                                   nb::bytes(one.space.data(), one.space.size()), one.parent,
                                   to_array(one.hashes), to_array(one.tokens)));
    }
    return out;
  }
};

}  // namespace

void bind_radix(nb::module_& m) {
  nb::class_<Lease>(m, "RadixLease")
      .def_prop_ro("held", &Lease::held)
      .def("release", &Lease::release)
      .def("touch", &Lease::touch)
      .def("__len__", [](const Lease& lease) { return lease.pages().size(); })
      .def_prop_ro("pages",
                   [](nb::handle self) { return view_of(nb::cast<Lease&>(self).pages(), self); })
      .def_prop_ro("hashes",
                   [](nb::handle self) { return view_of(nb::cast<Lease&>(self).hashes(), self); });
  nb::class_<Tree>(m, "RadixTree")
      .def(nb::init<std::int64_t, const std::string&, std::size_t>(), "page_size"_a,
           "order"_a = "used", "events_max"_a = 0)
      .def("match", &Tree::match, "space"_a, "seed"_a, "tokens"_a, "tokens_max"_a, "touch"_a)
      .def("lookup", &Tree::lookup, "space"_a, "tokens"_a, "tokens_max"_a)
      .def("insert", &Tree::insert, "space"_a, "seed"_a, "tokens"_a, "pages"_a,
           "owner"_a.none() = nb::none())
      .def("evict", [](Tree& self, std::size_t count) { return to_array(self.tree->evict(count)); })
      .def("is_tail", [](const Tree& self, std::uint64_t hash) { return self.tree->is_tail(hash); })
      .def("evict_tail", [](Tree& self, std::uint64_t hash) { return self.tree->evict_tail(hash); })
      .def("clear", [](Tree& self) { return to_array(self.tree->clear()); })
      .def("take_journal",
           [](Tree& self) {
             RadixJournal taken = std::exchange(self.tree->journal(), {});
             return std::tuple(to_array(taken.hashes), to_array(taken.depths),
                               to_array(taken.kinds));
           })
      .def("take_events",
           [](Tree& self) {
             const bool lost = self.tree->events().lost();
             return std::tuple(lost, self.records(self.tree->events().take()));
           })
      .def(
          "report",
          [](const Tree& self, std::optional<nb::bytes> ranges) {
            if (!ranges) return self.records(self.tree->report());
            RangeMarks only;
            if (!read_marks(view(*ranges), only)) throw std::invalid_argument("ranges: 32 bytes");
            return self.records(self.tree->report(&only));
          },
          "ranges"_a = nb::none())
      .def("digest",
           [](const Tree& self) {
             const RangeDigests found = self.tree->digest();
             std::array<std::uint64_t, kDigestRanges> counts, names;
             for (std::size_t i = 0; i < kDigestRanges; i++) {
               counts[i] = found[i].count;
               names[i] = found[i].names;
             }
             return std::tuple(nb::bytes(counts.data(), sizeof counts),
                               nb::bytes(names.data(), sizeof names));
           })
      .def("check",
           [](const Tree& self) {
             std::vector<std::int32_t> pages;
             std::string wrong = self.tree->check(pages);
             return std::tuple(std::move(wrong), to_array(pages));
           })
      .def_prop_ro("cached_pages", [](const Tree& self) { return self.tree->cached_pages(); })
      .def_prop_ro("protected_pages", [](const Tree& self) { return self.tree->protected_pages(); })
      .def_prop_ro("nodes", [](const Tree& self) { return self.tree->nodes(); })
      .def_prop_ro("leases", [](const Tree& self) { return self.tree->leases(); });
}

}  // namespace moonpool
