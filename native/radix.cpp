// The prefix tree: finding, inserting, splitting.
#include "radix.hpp"

#include <algorithm>
#include <cstring>

#include "block_hash.hpp"

namespace moonpool {
namespace {

// Bytes compared at a time while the next are on their way: both sides of a long prompt come from
// memory, and the hardware follows the two streams too late.
constexpr std::size_t kStride = 2048;

void prefetch(const std::uint8_t* from) {
  for (std::size_t at = 0; at < kStride; at += 64) __builtin_prefetch(from + at);
}

std::size_t bytes_equal(const std::uint8_t* a, const std::uint8_t* b, std::size_t size) {
  std::size_t at = 0;
  for (; at + kStride <= size; at += kStride) {
    if (at + 2 * kStride <= size) {
      prefetch(a + at + kStride);
      prefetch(b + at + kStride);
    }
    if (std::memcmp(a + at, b + at, kStride) != 0) break;
  }
  const std::size_t end = std::min(size, at + kStride);
  if (std::memcmp(a + at, b + at, end - at) == 0) return end;
  while (a[at] == b[at]) at++;
  return at;
}

// Whole pages that `a` and `b` have in common from their start.
std::size_t pages_equal(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b,
                        std::size_t page_size) {
  const std::size_t bytes = page_size * sizeof(std::uint32_t);
  const std::size_t size = std::min(a.size(), b.size()) / page_size * bytes;
  return bytes_equal(reinterpret_cast<const std::uint8_t*>(a.data()),
                     reinterpret_cast<const std::uint8_t*>(b.data()), size) /
         bytes;
}

}  // namespace

RadixTree::RadixTree(std::size_t page_size, RadixOrder order, std::size_t events_max)
    : page_size_(page_size), order_(order), events_(events_max) {}

RadixTree::Found RadixTree::match(std::string_view space, std::uint64_t seed,
                                  std::span<const std::uint32_t> tokens, bool touch) {
  const std::uint32_t node = stop_at(walk(root_of(space, seed), tokens));
  hold(node);
  if (touch) touch_path(node, true);
  return {node, static_cast<std::uint32_t>(nodes_[node].end())};
}

std::size_t RadixTree::lookup(std::string_view space, std::span<const std::uint32_t> tokens) const {
  const auto root = roots_.find(space);
  return root == roots_.end() ? 0 : walk(root->second, tokens).tokens / page_size_;
}

RadixTree::Inserted RadixTree::insert(std::string_view space, std::uint64_t seed,
                                      std::span<const std::uint32_t> tokens,
                                      std::span<const std::int32_t> pages, std::uint32_t owner) {
  const Walk found = walk(root_of(space, seed), tokens.first(pages.size() * page_size_));
  const std::size_t known = found.tokens / page_size_;
  std::uint32_t node = stop_at(found);
  if (known < pages.size()) {
    const auto fresh = tokens.subspan(found.tokens, (pages.size() - known) * page_size_);
    if (may_grow(node, owner)) {
      grow(node, fresh, pages.subspan(known));
    } else {
      node = append(node, fresh, pages.subspan(known));
    }
  }
  hold(node);
  touch_path(node, false);
  return {node, static_cast<std::uint32_t>(known)};
}

void RadixTree::path(std::uint32_t node, std::span<std::int32_t> pages,
                     std::span<std::uint64_t> hashes) const {
  for (std::uint32_t id = node; id != kNone; id = nodes_[id].parent) {
    const RadixNode& one = nodes_[id];
    std::copy(one.pages.begin(), one.pages.end(), pages.begin() + one.start);
    std::copy(one.hashes.begin(), one.hashes.end(), hashes.begin() + one.start);
  }
}

RadixTree::Walk RadixTree::walk(std::uint32_t root, std::span<const std::uint32_t> tokens) const {
  Walk at{root, 0, 0};
  while (tokens.size() - at.tokens >= page_size_) {
    const auto rest = tokens.subspan(at.tokens);
    const std::uint32_t child = child_of(at.node, rest.first(page_size_));
    if (child == kNone) break;
    const RadixNode& edge = nodes_[child];
    const std::size_t same = pages_equal(edge.tokens, rest, page_size_);
    at = {child, static_cast<std::uint32_t>(same), at.tokens + same * page_size_};
    if (same < edge.pages.size()) break;
  }
  return at;
}

std::uint32_t RadixTree::child_of(std::uint32_t node, std::span<const std::uint32_t> page) const {
  if (nodes_[node].children == 0) return kNone;
  std::uint64_t hash;
  block_chain_u64(nodes_[node].last_hash(), page, page_size_, {&hash, 1});
  std::uint32_t found = kNone;
  children_.find(hash, [&](std::uint32_t child) {
    const RadixNode& edge = nodes_[child];
    if (edge.parent != node) return false;
    if (std::memcmp(edge.tokens.data(), page.data(), page.size_bytes()) != 0) return false;
    found = child;
    return true;
  });
  return found;
}

std::uint32_t RadixTree::root_of(std::string_view space, std::uint64_t seed) {
  const auto known = roots_.find(space);
  if (known != roots_.end()) return known->second;
  const std::uint32_t root = take_node();
  nodes_[root].root = root;
  nodes_[root].seed = seed;
  nodes_[root].space = space;
  roots_.emplace(space, root);
  return root;
}

// The node that ends exactly where the walk did.
std::uint32_t RadixTree::stop_at(const Walk& walk) {
  if (walk.inside == nodes_[walk.node].pages.size()) return walk.node;
  return split(walk.node, walk.inside);
}

// The deepest pages first, so that a policy outside sees the start of a chain as the most recent.
void RadixTree::touch_path(std::uint32_t node, bool use) {
  clock_++;
  for (std::uint32_t id = node; nodes_[id].parent != kNone; id = nodes_[id].parent) {
    RadixNode& one = nodes_[id];
    one.used = clock_;
    if (!use) continue;
    one.uses++;
    if (external()) journal_.add_reversed(one.hashes, one.start, RadixJournal::kTouched);
  }
}

std::uint32_t RadixTree::append(std::uint32_t parent, std::span<const std::uint32_t> tokens,
                                std::span<const std::int32_t> pages) {
  const std::uint32_t id = take_node();
  RadixNode& node = nodes_[id];
  node.start = static_cast<std::uint32_t>(nodes_[parent].end());
  node.root = nodes_[parent].root;
  node.created = clock_ + 1;
  node.uses = 1;
  node.hashes.assign(1, 0);
  block_chain_u64(nodes_[parent].last_hash(), tokens.first(page_size_), page_size_, node.hashes);
  attach(parent, id);
  leaf_changed(parent);
  node.hashes.clear();
  grow(id, tokens, pages);
  return id;
}

// Only where the new pages have the age and the uses of the old ones: an order over nodes must be
// one over pages.
bool RadixTree::may_grow(std::uint32_t node, std::uint32_t owner) const {
  const RadixNode& one = nodes_[node];
  if (node != owner || one.parent == kNone || one.children > 0 || one.leases != 1) return false;
  return order_ == RadixOrder::kUses ? one.uses == 1 : order_ != RadixOrder::kCreated;
}

void RadixTree::grow(std::uint32_t id, std::span<const std::uint32_t> tokens,
                     std::span<const std::int32_t> pages) {
  RadixNode& node = nodes_[id];
  const std::size_t before = node.pages.size();
  const std::uint64_t seed = before > 0 ? node.last_hash() : nodes_[node.parent].last_hash();
  node.tokens.insert(node.tokens.end(), tokens.begin(), tokens.end());
  node.pages.insert(node.pages.end(), pages.begin(), pages.end());
  node.hashes.resize(node.pages.size());
  const auto fresh = std::span(node.hashes).subspan(before);
  block_chain_u64(seed, tokens, page_size_, fresh);
  cached_ += pages.size();
  if (node.holds > 0) protected_ += pages.size();
  if (external()) journal_.add_reversed(fresh, node.start + before, RadixJournal::kAdded);
  if (events_.on()) events_.add(stored(id, before));
}

// A new node takes the first `at` pages; the old one keeps its place as the end of its leases.
std::uint32_t RadixTree::split(std::uint32_t node, std::uint32_t at) {
  const std::uint32_t id = take_node();
  RadixNode &upper = nodes_[id], &lower = nodes_[node];
  const std::uint32_t parent = lower.parent;
  detach(node);
  upper.start = lower.start;
  upper.root = lower.root;
  upper.used = lower.used;
  upper.created = lower.created;
  upper.uses = lower.uses;
  upper.holds = lower.holds > 0 ? 1 : 0;
  const auto divide = [](auto& from, auto& head, std::size_t n) {
    using Items = std::remove_reference_t<decltype(from)>;
    head = Items(from.begin(), from.begin() + n);
    from = Items(from.begin() + n, from.end());
  };
  divide(lower.tokens, upper.tokens, at * page_size_);
  divide(lower.pages, upper.pages, at);
  divide(lower.hashes, upper.hashes, at);
  lower.start += at;
  attach(parent, id);
  attach(id, node);
  return id;
}

std::uint32_t RadixTree::take_node() {
  if (spare_.empty()) {
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  const std::uint32_t id = spare_.back();
  spare_.pop_back();
  return id;
}

void RadixTree::give_node(std::uint32_t node) {
  nodes_[node] = RadixNode{};
  spare_.push_back(node);
}

void RadixTree::attach(std::uint32_t parent, std::uint32_t node) {
  RadixNode &above = nodes_[parent], &one = nodes_[node];
  one.parent = parent;
  one.previous = kNone;
  one.next = above.first_child;
  if (one.next != kNone) nodes_[one.next].previous = node;
  above.first_child = node;
  above.children++;
  children_.insert(one.hashes.front(), node);
}

void RadixTree::detach(std::uint32_t node) {
  RadixNode& one = nodes_[node];
  RadixNode& above = nodes_[one.parent];
  (one.previous == kNone ? above.first_child : nodes_[one.previous].next) = one.next;
  if (one.next != kNone) nodes_[one.next].previous = one.previous;
  above.children--;
  children_.erase(one.hashes.front(), node);
}

}  // namespace moonpool
