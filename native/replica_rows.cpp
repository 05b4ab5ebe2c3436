#include "replica_rows.hpp"

#include <algorithm>

namespace moonpool {

ReplicaRows::ReplicaRows(std::size_t rows_max, std::size_t replicas_max, std::size_t lists_max)
    : head(rows_max),
      object(replicas_max),
      segment(replicas_max),
      state(replicas_max),
      slot(replicas_max),
      generation(replicas_max),
      next(replicas_max),
      list(replicas_max),
      marks(replicas_max),
      links_(replicas_max),
      ends_(lists_max),
      numbers_(replicas_max) {}

std::int32_t ReplicaRows::add(std::int32_t object_row, std::uint16_t in_segment,
                              std::uint32_t in_slot, std::uint64_t at_generation) {
  const std::int32_t replica = numbers_.take();
  object[replica] = object_row;
  segment[replica] = in_segment;
  state[replica] = 0;
  slot[replica] = in_slot;
  generation[replica] = at_generation;
  list[replica] = -1;
  next[replica] = -1;
  std::int32_t* end = &head[object_row];
  while (*end >= 0) end = &next[*end];
  *end = replica;
  return replica;
}

void ReplicaRows::remove(std::int32_t replica) {
  if (listed(replica)) take(replica);
  unchain(replica);
  numbers_.give(replica);
}

void ReplicaRows::undo_add(std::int32_t replica, std::int32_t high_before) {
  unchain(replica);
  numbers_.undo(replica, replica >= high_before);
}

void ReplicaRows::unchain(std::int32_t replica) {
  std::int32_t* link = &head[object[replica]];
  while (*link != replica) link = &next[*link];
  *link = next[replica];
  object[replica] = next[replica] = -1;
}

std::size_t ReplicaRows::count(std::int32_t object_row) const {
  std::size_t n = 0;
  for (std::int32_t at = head[object_row]; at >= 0; at = next[at]) n++;
  return n;
}

void ReplicaRows::push(std::int32_t list_id, std::int32_t replica) {
  Ends& ends = ends_[list_id];
  links_[replica] = {ends.newest, -1};
  (ends.newest >= 0 ? links_[ends.newest].newer : ends.oldest) = replica;
  ends.newest = replica;
  ends.length++;
  list[replica] = static_cast<std::int16_t>(list_id);
}

void ReplicaRows::take(std::int32_t replica) {
  Ends& ends = ends_[list[replica]];
  const auto [older, newer] = links_[replica];
  (older >= 0 ? links_[older].newer : ends.oldest) = newer;
  (newer >= 0 ? links_[newer].older : ends.newest) = older;
  ends.length--;
  list[replica] = -1;
}

void ReplicaRows::touch(std::int32_t replica) {
  const std::int32_t list_id = list[replica];
  if (ends_[list_id].newest == replica) return;
  take(replica);
  push(list_id, replica);
}

std::vector<std::int32_t> ReplicaRows::tail(std::int32_t list_id, std::size_t n,
                                            std::size_t skip) const {
  const Ends& ends = ends_[list_id];
  std::vector<std::int32_t> found;
  if (skip >= ends.length) return found;
  found.reserve(std::min(n, ends.length - skip));
  std::int32_t at = ends.oldest;
  while (skip-- > 0) at = links_[at].newer;
  for (; at >= 0 && found.size() < n; at = links_[at].newer) found.push_back(at);
  return found;
}

std::size_t ReplicaRows::memory_bytes() const {
  constexpr std::size_t kPerReplica = 4 + 2 + 1 + 4 + 8 + 4 + 2 + 4 + sizeof(Links);
  return static_cast<std::size_t>(numbers_.high()) * kPerReplica + ends_.size() * sizeof(Ends) +
         numbers_.memory_bytes();
}

}  // namespace moonpool
