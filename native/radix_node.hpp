// One edge of the prefix tree with the node at its end, and the orders its leaves can have.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moonpool {

// Which leaf goes first: by least recent use, by age, or by fewest uses (then recency). External:
// as the caller says, who is told of each access; by least recent use where it does not say.
enum class RadixOrder : std::uint8_t { kUsed, kCreated, kUses, kExternal };

struct RadixNode {
  static constexpr std::uint32_t kNone = 0xffffffffu;

  std::uint32_t parent = kNone;  // kNone: a root, without pages
  std::uint32_t first_child = kNone;
  std::uint32_t previous = kNone, next = kNone;  // siblings
  std::uint32_t children = 0;
  std::uint32_t root = kNone;
  std::uint32_t leases = 0;  // that end here
  std::uint32_t holds = 0;   // leases here, and children with holds
  std::uint32_t heap_at = kNone;
  std::uint32_t start = 0;  // pages above
  std::uint64_t used = 0, created = 0, uses = 0;
  std::uint64_t seed = 0;  // of a root: what stands before the first hash
  std::string space;       // of a root
  std::vector<std::uint32_t> tokens;
  std::vector<std::int32_t> pages;
  std::vector<std::uint64_t> hashes;  // the routing chain, one a page

  std::size_t end() const { return start + pages.size(); }
  std::uint64_t last_hash() const { return hashes.empty() ? seed : hashes.back(); }
};

}  // namespace moonpool
