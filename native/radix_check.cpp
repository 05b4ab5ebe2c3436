// The prefix tree: what its followers are told, and the check of every invariant.
#include "block_hash.hpp"
#include "radix.hpp"

namespace moonpool {

// Pages [from, to) of a node.
RadixEvents::Record RadixTree::stored(std::uint32_t id, std::size_t from, std::size_t to) const {
  const RadixNode& node = nodes_[id];
  const std::uint64_t parent = from > 0 ? node.hashes[from - 1] : nodes_[node.parent].last_hash();
  const auto tokens = node.tokens.begin();
  const auto hashes = node.hashes.begin();
  const auto first = static_cast<std::ptrdiff_t>(from), last = static_cast<std::ptrdiff_t>(to);
  const auto page = static_cast<std::ptrdiff_t>(page_size_);
  return {RadixEvent::kStored,
          node.start + from == 0,
          nodes_[node.root].space,
          parent,
          {hashes + first, hashes + last},
          {tokens + first * page, tokens + last * page}};
}

void RadixTree::report_ranges(std::uint32_t id, const RangeMarks& only,
                              std::vector<RadixEvents::Record>& out) const {
  const auto& hashes = nodes_[id].hashes;
  const auto wanted = [&](std::size_t i) { return only[range_of(hashes[i])] != 0; };
  for (std::size_t from = 0, to = 0; from < hashes.size(); from = to + 1) {
    for (to = from; to < hashes.size() && wanted(to);) to++;
    if (to > from) out.push_back(stored(id, from, to));
  }
}

RangeDigests RadixTree::digest() const {
  RangeDigests found;
  for (const RadixNode& node : nodes_) {
    if (node.root == kNone) continue;
    for (const std::uint64_t hash : node.hashes) add_name(found, hash);
  }
  return found;
}

std::vector<RadixEvents::Record> RadixTree::report(const RangeMarks* only) const {
  std::vector<RadixEvents::Record> out;
  std::vector<std::uint32_t> open;
  for (const auto& [space, root] : roots_) open.push_back(root);
  while (!open.empty()) {
    const std::uint32_t id = open.back();
    open.pop_back();
    if (only != nullptr) {
      report_ranges(id, *only, out);
    } else if (nodes_[id].parent != kNone) {
      out.push_back(stored(id, 0));
    }
    for (std::uint32_t child = nodes_[id].first_child; child != kNone; child = nodes_[child].next) {
      open.push_back(child);
    }
  }
  return out;
}

std::string RadixTree::check(std::vector<std::int32_t>& pages) const {
  std::size_t live = 0, cached = 0, held = 0, leases = 0, listed = 0;
  for (std::uint32_t id = 0; id < nodes_.size(); id++) {
    const RadixNode& node = nodes_[id];
    if (node.root == kNone) continue;
    live++;
    cached += node.pages.size();
    leases += node.leases;
    if (node.holds > 0) held += node.pages.size();
    if (node.heap_at != kNone) listed++;
    pages.insert(pages.end(), node.pages.begin(), node.pages.end());
    const std::string wrong = check_node(id);
    if (!wrong.empty()) return "node " + std::to_string(id) + ": " + wrong;
  }
  if (live != nodes()) return "nodes neither live nor spare";
  if (cached != cached_) return "cached pages are counted wrong";
  if (held != protected_) return "protected pages are counted wrong";
  if (leases != leases_) return "leases are counted wrong";
  if (live - roots_.size() != children_.size()) return "the child index has strays";
  if (listed != heap_.size()) return "strays in the heap";
  if (external() && listed != tails_.size()) return "strays among the tails";
  return "";
}

std::string RadixTree::check_node(std::uint32_t id) const {
  const RadixNode& node = nodes_[id];
  std::size_t children = 0, holding = 0;
  for (std::uint32_t child = node.first_child; child != kNone; child = nodes_[child].next) {
    children++;
    if (nodes_[child].holds > 0) holding++;
    if (nodes_[child].parent != id) return "a child of another parent";
    if (nodes_[child].start != node.end()) return "a child that starts elsewhere";
    if (nodes_[child].used > node.used && node.parent != kNone) return "older than its child";
  }
  if (children != node.children) return "children are counted wrong";
  if (node.holds != node.leases + holding) return "holds are counted wrong";
  if (node.parent == kNone) {
    const auto root = roots_.find(node.space);
    if (root == roots_.end() || root->second != id) return "a root that nobody finds";
    return children + node.holds == 0 ? "a root of nothing" : "";
  }
  if (node.pages.empty() || node.tokens.size() != node.pages.size() * page_size_) return "sizes";
  std::vector<std::uint64_t> hashes(node.pages.size());
  block_chain_u64(nodes_[node.parent].last_hash(), node.tokens, page_size_, hashes);
  if (hashes != node.hashes) return "hashes are not the chain's";
  const std::span<const std::uint32_t> tokens(node.tokens);
  if (child_of(node.parent, tokens.first(page_size_)) != id) return "not found under its parent";
  if (may_go(node) != (node.heap_at != kNone)) return "listed among the tails, or not, wrongly";
  if (node.heap_at == kNone) return "";
  if (external() && !is_tail(hashes.back())) return "a tail not found";
  if (heap_[node.heap_at] != id) return "another stands in its place of the heap";
  const bool ordered = node.heap_at == 0 || !before(id, heap_[(node.heap_at - 1) / 2]);
  return ordered ? "" : "the heap is out of order";
}

}  // namespace moonpool
