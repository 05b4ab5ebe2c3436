// The prefix tree: holds, the leaves that may go, and their going.
#include <algorithm>

#include "radix.hpp"

namespace moonpool {

// A node is protected while a lease ends in it or below it. Only nodes whose state changes are
// visited: a parent with a hold already stays as it is.
void RadixTree::hold(std::uint32_t node) {
  nodes_[node].leases++;
  leases_++;
  for (std::uint32_t id = node; id != kNone; id = nodes_[id].parent) {
    if (nodes_[id].holds++ > 0) break;
    protected_ += nodes_[id].pages.size();
    leaf_changed(id);
  }
}

void RadixTree::unhold(std::uint32_t node) {
  nodes_[node].leases--;
  leases_--;
  for (std::uint32_t id = node; id != kNone; id = nodes_[id].parent) {
    if (--nodes_[id].holds > 0) break;
    protected_ -= nodes_[id].pages.size();
    leaf_changed(id);
  }
}

void RadixTree::release(std::uint32_t node) {
  const std::uint32_t root = nodes_[node].root;
  unhold(node);
  drop_root(root);
}

void RadixTree::drop_root(std::uint32_t root) {
  if (nodes_[root].children > 0 || nodes_[root].holds > 0) return;
  roots_.erase(nodes_[root].space);
  give_node(root);
}

std::vector<std::int32_t> RadixTree::evict(std::size_t count) {
  std::vector<std::int32_t> out;
  out.reserve(std::min(count, evictable_pages()));
  while (out.size() < count && !heap_.empty()) shrink(heap_[0], count - out.size(), out, false);
  return out;
}

bool RadixTree::is_tail(std::uint64_t hash) const {
  return tails_.find(hash, [](std::uint32_t) { return true; });
}

std::int32_t RadixTree::evict_tail(std::uint64_t hash) {
  std::uint32_t node = kNone;
  tails_.find(hash, [&](std::uint32_t found) {
    node = found;
    return true;
  });
  if (node == kNone) return -1;
  std::vector<std::int32_t> out;
  shrink(node, 1, out, true);
  return out[0];
}

std::vector<std::int32_t> RadixTree::clear() {
  std::vector<std::uint32_t> deepest_first;
  for (std::uint32_t id = 0; id < nodes_.size(); id++) {
    if (nodes_[id].parent != kNone) deepest_first.push_back(id);
  }
  std::sort(deepest_first.begin(), deepest_first.end(),
            [&](std::uint32_t a, std::uint32_t b) { return nodes_[a].start > nodes_[b].start; });
  const bool all = protected_ == 0;
  std::vector<std::int32_t> out;
  if (all) events_.pause();
  for (const std::uint32_t id : deepest_first) {
    if (may_go(nodes_[id])) shrink(id, nodes_[id].pages.size(), out, false);
  }
  if (all) events_.resume_with({RadixEvent::kCleared, false, "", 0, {}, {}});
  return out;
}

// Takes up to `count` pages from the end of a leaf that may go; `chosen` by a policy that knows.
void RadixTree::shrink(std::uint32_t id, std::size_t count, std::vector<std::int32_t>& out,
                       bool chosen) {
  RadixNode& node = nodes_[id];
  const std::size_t left = node.pages.size() - std::min(count, node.pages.size());
  out.insert(out.end(), node.pages.rbegin(), node.pages.rend() - left);
  cached_ -= node.pages.size() - left;
  if (events_.on()) {
    const RadixNode& root = nodes_[node.root];
    events_.add({RadixEvent::kRemoved,
                 false,
                 root.space,
                 0,
                 {node.hashes.rbegin(), node.hashes.rend() - left},
                 {}});
  }
  if (external() && !chosen) {
    const auto gone = std::span<const std::uint64_t>(node.hashes).subspan(left);
    journal_.add_reversed(gone, node.start + left, RadixJournal::kRemoved);
  }
  if (left == 0) {
    const std::uint32_t parent = node.parent, root = node.root;
    remove_tail(id);
    detach(id);
    give_node(id);
    if (parent == root) {
      drop_root(root);
    } else {
      leaf_changed(parent);
    }
    return;
  }
  if (external()) tails_.erase(node.hashes.back(), id);
  const auto cut = [](auto& items, std::size_t n) {
    items.resize(n);
    if (items.capacity() > 2 * n) items.shrink_to_fit();
  };
  cut(node.tokens, left * page_size_);
  cut(node.pages, left);
  cut(node.hashes, left);
  if (external()) tails_.insert(node.hashes.back(), id);
}

// To be called when holds or children of a node changed: whether it may go now.
void RadixTree::leaf_changed(std::uint32_t id) {
  const bool listed = nodes_[id].heap_at != kNone;
  if (may_go(nodes_[id]) == listed) return;
  if (listed) {
    remove_tail(id);
  } else {
    add_tail(id);
  }
}

void RadixTree::add_tail(std::uint32_t id) {
  if (external()) tails_.insert(nodes_[id].hashes.back(), id);
  nodes_[id].heap_at = static_cast<std::uint32_t>(heap_.size());
  heap_.push_back(id);
  sift_up(heap_.size() - 1);
}

void RadixTree::remove_tail(std::uint32_t id) {
  const std::uint32_t at = nodes_[id].heap_at;
  nodes_[id].heap_at = kNone;
  if (external()) tails_.erase(nodes_[id].hashes.back(), id);
  const std::uint32_t last = heap_.back();
  heap_.pop_back();
  if (last == id) return;
  heap_place(at, last);
  sift_up(at);
  sift_down(nodes_[last].heap_at);
}

bool RadixTree::before(std::uint32_t a, std::uint32_t b) const {
  const RadixNode &one = nodes_[a], &other = nodes_[b];
  if (order_ == RadixOrder::kCreated) return one.created < other.created;
  if (order_ == RadixOrder::kUses && one.uses != other.uses) return one.uses < other.uses;
  return one.used < other.used;
}

void RadixTree::heap_place(std::size_t at, std::uint32_t node) {
  heap_[at] = node;
  nodes_[node].heap_at = static_cast<std::uint32_t>(at);
}

void RadixTree::sift_up(std::size_t at) {
  const std::uint32_t node = heap_[at];
  while (at > 0 && before(node, heap_[(at - 1) / 2])) {
    heap_place(at, heap_[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  heap_place(at, node);
}

void RadixTree::sift_down(std::size_t at) {
  const std::uint32_t node = heap_[at];
  for (std::size_t child; (child = 2 * at + 1) < heap_.size(); at = child) {
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) child++;
    if (!before(heap_[child], node)) break;
    heap_place(at, heap_[child]);
  }
  heap_place(at, node);
}

}  // namespace moonpool
