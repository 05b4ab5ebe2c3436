// The catalog's row table: objects found by key, their replicas, trees and recency lists. Mechanism
// only: what a state means, who is evicted and who may read is decided above. One thread at a time.
// Every row number that comes in is checked here; a call that throws has changed nothing.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "column.hpp"
#include "key_map.hpp"
#include "replica_rows.hpp"
#include "row_tree.hpp"
#include "table_error.hpp"

namespace moonpool {

class Table {
 public:
  using Rows = std::span<const std::int32_t>;
  using RowList = std::vector<std::int32_t>;
  static constexpr std::size_t kReplicasPerObjectMax = 255;

  // The same number for each of a reserved batch, but sequence and attempt, which count up.
  struct Reservation {
    std::uint8_t state, wanted, pin;
    std::uint32_t tenant;
    std::uint64_t term, first_seq, first_attempt;
    std::int64_t expiry_ms;
  };
  struct Commit {
    Rows rows;
    std::span<const std::uint64_t> attempts;
    std::span<const std::uint16_t> segments;
    std::span<const std::uint32_t> slots;
    std::span<const std::uint64_t> generations;
    std::span<const std::uint32_t> crcs;
    std::uint8_t state_from, state_to;
    bool touch_ancestors;
  };
  enum CommitStatus : std::uint8_t { kCommitted = 0, kStale = 1 };

  Table(std::size_t rows_max, std::size_t replicas_max, std::size_t lists_max);

  // Keys. Outputs have one entry per key.
  void find(const KeyBatch& batch, std::int32_t* rows) const { keys_.find(batch, rows); }
  void intern(const KeyBatch& batch, std::int32_t* rows, bool* fresh);
  std::string_view key(std::int32_t row) const;
  std::string keys(Rows rows, std::uint32_t* ends) const;
  std::string parent_keys(Rows rows, std::uint32_t* ends) const;
  void erase(Rows rows);
  // Live rows of [start, start + max) with the prefix, and where to go on (-1: the end).
  std::pair<RowList, std::int64_t> scan(std::int64_t start, std::int64_t max,
                                        std::string_view prefix) const;

  // The tree.
  void set_parent(Rows rows, Rows parents, bool* linked);
  RowList descendants(Rows rows);
  RowList ancestors_order(Rows rows);

  // Replicas.
  void add_replicas(Rows rows, std::span<const std::uint16_t> segments,
                    std::span<const std::uint32_t> slots,
                    std::span<const std::uint64_t> generations, std::int32_t* replicas);
  void remove_replicas(Rows replicas);
  RowList replicas_of(Rows rows, std::uint8_t* counts) const;

  // Recency lists.
  void list_push(std::int64_t list_id, Rows replicas);
  void list_remove(Rows replicas);
  void list_touch(Rows replicas);
  std::size_t list_length(std::int64_t list_id) const;
  RowList list_tail(std::int64_t list_id, std::int64_t n, std::int64_t skip) const;
  RowList list_iter(std::int64_t list_id) const;

  // Whole steps of the catalog.
  std::size_t touch_objects(Rows rows, std::span<const std::uint64_t> seqs);
  void reserve_batch(Rows rows, std::span<const std::uint64_t> sizes, const Reservation& with);
  void commit_batch(const Commit& commit, std::uint8_t* status, std::int32_t* replicas);

  bool live(std::int32_t row) const { return keys_.live(row); }
  std::size_t size() const { return keys_.size(); }
  std::size_t memory_bytes() const;
  std::size_t rows_max() const { return rows_max_; }
  std::size_t replicas_max() const { return replicas_max_; }

  // Columns that belong to the caller.
  Column<std::uint8_t> state, flags, pin, wanted;
  Column<std::uint32_t> tenant, crc;
  Column<std::uint64_t> term, seq, object_size, attempt;
  Column<std::int64_t> expiry_ms;
  // Columns the table alone writes, but for state, slot and generation of replicas.
  RowTree tree;
  ReplicaRows replicas;

 private:
  void check_live(Rows rows, const char* name) const;
  void check_live_replicas(Rows rows) const;
  void check_once(Rows rows);
  void check_listed(Rows rows, bool listed) const;
  std::int32_t check_list(std::int64_t list_id) const;
  void check_room(std::size_t more) const;
  void append_key(std::string& blob, std::int32_t row, std::uint32_t& end) const;
  void reset(std::int32_t row);
  void touch_rows(const RowList& rows);

  std::size_t rows_max_, replicas_max_;
  KeyMap keys_;
};

}  // namespace moonpool
