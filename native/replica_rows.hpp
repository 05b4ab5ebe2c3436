// Rows of replicas: a chain per object (oldest first) and one recency list per segment or as the
// policy likes, linked through the rows themselves. Arguments were checked by Table.
#pragma once
#include <cstdint>
#include <vector>

#include "column.hpp"

namespace moonpool {

class ReplicaRows {
 public:
  ReplicaRows(std::size_t rows_max, std::size_t replicas_max, std::size_t lists_max);

  void reset(std::int32_t object_row) { head[object_row] = -1; }
  std::int32_t add(std::int32_t object_row, std::uint16_t segment, std::uint32_t slot,
                   std::uint64_t generation);
  void remove(std::int32_t replica);
  // Takes the latest add back; `high_before` was high() before the first add of the call.
  void undo_add(std::int32_t replica, std::int32_t high_before);
  std::size_t count(std::int32_t object_row) const;

  void push(std::int32_t list_id, std::int32_t replica);  // to the most recent end
  void take(std::int32_t replica);                        // off its list
  void touch(std::int32_t replica);                       // to the most recent end of its list

  bool live(std::int32_t replica) const {
    return static_cast<std::uint32_t>(replica) < static_cast<std::uint32_t>(numbers_.high()) &&
           object[replica] >= 0;
  }
  bool listed(std::int32_t replica) const { return list[replica] >= 0; }
  std::size_t list_length(std::int32_t list_id) const { return ends_[list_id].length; }
  std::size_t lists() const { return ends_.size(); }
  // Up to n from the least recent on, after `skip`.
  std::vector<std::int32_t> tail(std::int32_t list_id, std::size_t n, std::size_t skip) const;

  std::size_t size() const { return numbers_.taken(); }
  std::size_t left() const { return numbers_.left(); }
  std::int32_t high() const { return numbers_.high(); }
  std::size_t memory_bytes() const;

  Column<std::int32_t> head;  // by object row: its first replica
  Column<std::int32_t> object;
  Column<std::uint16_t> segment;
  Column<std::uint8_t> state;
  Column<std::uint32_t> slot;
  Column<std::uint64_t> generation;
  Column<std::int32_t> next;  // of the same object
  Column<std::int16_t> list;
  Marks marks;

 private:
  struct Links {
    std::int32_t older, newer;
  };
  struct Ends {
    std::int32_t oldest = -1, newest = -1;
    std::size_t length = 0;
  };

  void unchain(std::int32_t replica);

  Column<Links> links_;
  std::vector<Ends> ends_;
  RowNumbers numbers_;
};

}  // namespace moonpool
