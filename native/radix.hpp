// The prefix tree of an engine's own KV cache: which pages hold which tokens. Edges are runs of
// whole pages; each namespace has a root of its own. The tree owns no memory of pages, it names
// them; it knows no policy, only an order over its leaves that the caller chose. Not thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "flat_index.hpp"
#include "radix_events.hpp"
#include "radix_node.hpp"
#include "range_digest.hpp"

namespace moonpool {

class RadixTree {
 public:
  static constexpr std::uint32_t kNone = RadixNode::kNone;

  RadixTree(std::size_t page_size, RadixOrder order, std::size_t events_max);

  // The longest cached prefix of `tokens`, in whole pages, and a hold on its last node: what it
  // found stays until release(). With `touch` the nodes on the way count as used now.
  struct Found {
    std::uint32_t node;
    std::uint32_t pages;
  };
  Found match(std::string_view space, std::uint64_t seed, std::span<const std::uint32_t> tokens,
              bool touch);
  // The same answer and no change at all: no hold, no use, no split.
  std::size_t lookup(std::string_view space, std::span<const std::uint32_t> tokens) const;

  void touch(std::uint32_t node) { touch_path(node, true); }

  // Makes `tokens` (one page of them per entry of `pages`) cached and holds the last node. Where
  // the prefix was cached already the tree keeps its own pages: `known` of those given were not
  // taken. A leaf that nobody but `owner` (a held node, or kNone) holds grows in place.
  struct Inserted {
    std::uint32_t node;
    std::uint32_t known;
  };
  Inserted insert(std::string_view space, std::uint64_t seed, std::span<const std::uint32_t> tokens,
                  std::span<const std::int32_t> pages, std::uint32_t owner);

  void release(std::uint32_t node);

  // Pages and routing hashes of the path that ends with `node`: node_end() of each.
  std::size_t path_pages(std::uint32_t node) const { return nodes_[node].end(); }
  void path(std::uint32_t node, std::span<std::int32_t> pages,
            std::span<std::uint64_t> hashes) const;

  // Takes exactly `count` pages, or all that may go, from the tails of the leaves that come first.
  std::vector<std::int32_t> evict(std::size_t count);
  // Whether the page of this hash is the last of a leaf that nobody holds; takes it (else -1).
  bool is_tail(std::uint64_t hash) const;
  std::int32_t evict_tail(std::uint64_t hash);
  // Takes everything that nobody holds; says "all cleared" when nothing is left.
  std::vector<std::int32_t> clear();

  std::size_t page_size() const { return page_size_; }
  std::size_t cached_pages() const { return cached_; }
  std::size_t protected_pages() const { return protected_; }
  std::size_t evictable_pages() const { return cached_ - protected_; }
  std::size_t nodes() const { return nodes_.size() - spare_.size(); }
  std::size_t leases() const { return leases_; }

  RadixEvents& events() { return events_; }
  // Every cached run, parents first, as "stored" records: what a follower needs that lost count.
  // With `only` the pages whose hashes are in these ranges.
  std::vector<RadixEvents::Record> report(const RangeMarks* only = nullptr) const;
  // Of all cached pages, by their routing hashes.
  RangeDigests digest() const;
  RadixJournal& journal() { return journal_; }

  // Walks everything; the first thing that does not hold, or nothing. `pages` gets every cached
  // page.
  std::string check(std::vector<std::int32_t>& pages) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Walk {
    std::uint32_t node;    // deepest node reached
    std::uint32_t inside;  // its pages that match; all of them but at the end
    std::size_t tokens;    // matched so far
  };

  Walk walk(std::uint32_t root, std::span<const std::uint32_t> tokens) const;
  std::uint32_t child_of(std::uint32_t node, std::span<const std::uint32_t> page) const;
  std::uint32_t root_of(std::string_view space, std::uint64_t seed);
  std::uint32_t stop_at(const Walk& walk);
  void touch_path(std::uint32_t node, bool use);
  std::uint32_t append(std::uint32_t parent, std::span<const std::uint32_t> tokens,
                       std::span<const std::int32_t> pages);
  bool may_grow(std::uint32_t node, std::uint32_t owner) const;
  void grow(std::uint32_t node, std::span<const std::uint32_t> tokens,
            std::span<const std::int32_t> pages);
  std::uint32_t split(std::uint32_t node, std::uint32_t at);

  std::uint32_t take_node();
  void give_node(std::uint32_t node);
  void attach(std::uint32_t parent, std::uint32_t node);
  void detach(std::uint32_t node);
  void drop_root(std::uint32_t root);

  void hold(std::uint32_t node);
  void unhold(std::uint32_t node);
  bool may_go(const RadixNode& node) const {
    return node.parent != kNone && node.holds == 0 && node.children == 0;
  }
  bool external() const { return order_ == RadixOrder::kExternal; }
  void leaf_changed(std::uint32_t node);
  void add_tail(std::uint32_t node);
  void remove_tail(std::uint32_t node);
  void shrink(std::uint32_t node, std::size_t count, std::vector<std::int32_t>& out, bool chosen);
  RadixEvents::Record stored(std::uint32_t node, std::size_t from) const {
    return stored(node, from, nodes_[node].hashes.size());
  }
  RadixEvents::Record stored(std::uint32_t node, std::size_t from, std::size_t to) const;
  void report_ranges(std::uint32_t node, const RangeMarks& only,
                     std::vector<RadixEvents::Record>& out) const;
  std::string check_node(std::uint32_t id) const;

  bool before(std::uint32_t a, std::uint32_t b) const;
  void heap_place(std::size_t at, std::uint32_t node);
  void sift_up(std::size_t at);
  void sift_down(std::size_t at);

  std::size_t page_size_;
  RadixOrder order_;
  std::uint64_t clock_ = 0;
  std::size_t cached_ = 0, protected_ = 0, leases_ = 0;
  std::deque<RadixNode> nodes_;
  std::vector<std::uint32_t> spare_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> roots_;
  FlatIndex children_;               // hash of a node's first page -> node
  std::vector<std::uint32_t> heap_;  // leaves that may go, the first one on top
  FlatIndex tails_;                  // kExternal: the hash of the last page of each of them -> it
  RadixEvents events_;
  RadixJournal journal_;
};

}  // namespace moonpool
