// The children of an entry in four bytes: none, one, a list kept elsewhere, or, beyond what is
// worth walking, only their number.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moonpool {

class Children {
 public:
  bool none() const { return word_ == 0; }
  bool one() const { return word_ >> 30 == 1; }
  bool listed() const { return word_ >> 30 == 2; }
  bool counted() const { return word_ >> 30 == 3; }
  std::uint32_t value() const { return word_ & 0x3fffffff; }  // the child, the list, the number

  static Children of_one(std::uint32_t child) { return Children(1u << 30 | child); }
  static Children of_list(std::uint32_t list) { return Children(2u << 30 | list); }
  static Children of_count(std::uint32_t count) { return Children(3u << 30 | count); }
  Children() = default;

 private:
  explicit Children(std::uint32_t word) : word_(word) {}
  std::uint32_t word_ = 0;
};

class ChildLists {
 public:
  static constexpr std::size_t kListed = 64;

  void add(Children& of, std::uint32_t child) {
    if (of.none()) {
      of = Children::of_one(child);
    } else {
      add_further(of, child);
    }
  }
  void remove(Children& of, std::uint32_t child);

  template <class Call>
  bool any(Children of, Call call) const {
    if (of.one()) return call(of.value());
    if (!of.listed()) return false;
    for (const std::uint32_t child : lists_[of.value()]) {
      if (call(child)) return true;
    }
    return false;
  }
  std::size_t memory_bytes() const;

 private:
  void add_further(Children& of, std::uint32_t child);
  std::uint32_t take_list();
  void give_back(std::uint32_t list);

  std::vector<std::vector<std::uint32_t>> lists_;
  std::vector<std::uint32_t> free_;
  std::size_t listed_ = 0;  // children in lists
};

}  // namespace moonpool
