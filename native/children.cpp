#include "children.hpp"

#include <algorithm>

namespace moonpool {

void ChildLists::add_further(Children& of, std::uint32_t child) {
  if (of.one()) {
    const std::uint32_t list = take_list();
    lists_[list] = {of.value(), child};
    listed_ += 2;
    of = Children::of_list(list);
  } else if (of.counted()) {
    of = Children::of_count(of.value() + 1);
  } else if (lists_[of.value()].size() < kListed) {
    lists_[of.value()].push_back(child);
    listed_++;
  } else {
    give_back(of.value());
    of = Children::of_count(kListed + 1);
  }
}

void ChildLists::remove(Children& of, std::uint32_t child) {
  if (of.one()) {
    of = Children();
  } else if (of.counted()) {
    of = of.value() == 1 ? Children() : Children::of_count(of.value() - 1);
  } else {
    std::vector<std::uint32_t>& list = lists_[of.value()];
    *std::find(list.begin(), list.end(), child) = list.back();
    list.pop_back();
    listed_--;
    if (list.size() > 1) return;
    const std::uint32_t last = list[0];
    give_back(of.value());
    of = Children::of_one(last);
  }
}

std::size_t ChildLists::memory_bytes() const {
  // A list's own memory is at most twice what it holds, and that is bounded by kListed.
  return lists_.capacity() * sizeof(lists_[0]) +
         (free_.capacity() + 2 * listed_) * sizeof(std::uint32_t);
}

std::uint32_t ChildLists::take_list() {
  if (free_.empty()) {
    lists_.emplace_back();
    return static_cast<std::uint32_t>(lists_.size() - 1);
  }
  const std::uint32_t list = free_.back();
  free_.pop_back();
  return list;
}

void ChildLists::give_back(std::uint32_t list) {
  listed_ -= lists_[list].size();
  std::vector<std::uint32_t>().swap(lists_[list]);
  free_.push_back(list);
}

}  // namespace moonpool
