#include "table.hpp"

#include <algorithm>
#include <stdexcept>

namespace moonpool {
namespace {

std::size_t bounded(std::size_t value, std::size_t max, const char* name) {
  if (value > max) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(value) +
                                " is over the limit of " + std::to_string(max));
  }
  return value;
}

template <class... Spans>
void same_length(std::size_t n, const Spans&... spans) {
  if (((spans.size() != n) || ...)) {
    std::string text = "columns differ in length: " + std::to_string(n);
    ((text += ", " + std::to_string(spans.size())), ...);
    throw std::invalid_argument(text);
  }
}

[[noreturn]] void bad_row(const char* name, std::int64_t row, const char* why) {
  throw std::out_of_range(std::string(name) + ": " + std::to_string(row) + why);
}

[[noreturn]] void bad_value(const char* name, std::int64_t row, const char* why) {
  throw std::invalid_argument(std::string(name) + ": " + std::to_string(row) + why);
}

}  // namespace

Table::Table(std::size_t rows_max, std::size_t replicas_max, std::size_t lists_max)
    : state(bounded(rows_max, INT32_MAX, "rows_max")),
      flags(rows_max),
      pin(rows_max),
      wanted(rows_max),
      tenant(rows_max),
      crc(rows_max),
      term(rows_max),
      seq(rows_max),
      object_size(rows_max),
      attempt(rows_max),
      expiry_ms(rows_max),
      tree(rows_max),
      replicas(rows_max, bounded(replicas_max, INT32_MAX, "replicas_max"),
               bounded(lists_max, INT16_MAX, "lists_max")),
      rows_max_(rows_max),
      replicas_max_(replicas_max),
      keys_(rows_max) {}

void Table::check_live(Rows rows, const char* name) const {
  for (const std::int32_t row : rows) {
    if (!keys_.live(row)) bad_row(name, row, " is not a live row");
  }
}

void Table::check_live_replicas(Rows rows) const {
  for (const std::int32_t row : rows) {
    if (!replicas.live(row)) bad_row("replicas", row, " is not a live replica row");
  }
}

void Table::check_once(Rows rows) {
  replicas.marks.begin();
  for (const std::int32_t row : rows) {
    if (!replicas.marks.mark(row)) bad_row("replicas", row, " is named twice");
  }
}

void Table::check_listed(Rows rows, bool listed) const {
  for (const std::int32_t row : rows) {
    if (replicas.listed(row) != listed) {
      bad_value("replicas", row, listed ? " is on no list" : " is on a list");
    }
  }
}

std::int32_t Table::check_list(std::int64_t list_id) const {
  if (list_id < 0 || list_id >= static_cast<std::int64_t>(replicas.lists())) {
    throw std::out_of_range("list " + std::to_string(list_id) + ": there are " +
                            std::to_string(replicas.lists()));
  }
  return static_cast<std::int32_t>(list_id);
}

void Table::check_room(std::size_t more) const {
  if (more > replicas.left()) {
    throw TableFull("all " + std::to_string(replicas_max_) + " replica rows are taken");
  }
}

void Table::reset(std::int32_t row) {
  state[row] = flags[row] = pin[row] = wanted[row] = 0;
  tenant[row] = crc[row] = 0;
  term[row] = seq[row] = object_size[row] = attempt[row] = 0;
  expiry_ms[row] = 0;
  tree.reset(row);
  replicas.reset(row);
}

void Table::intern(const KeyBatch& batch, std::int32_t* rows, bool* fresh) {
  keys_.intern(batch, rows, fresh);
  for (std::size_t i = 0; i < batch.size(); i++) {
    if (fresh[i]) reset(rows[i]);
  }
}

std::string_view Table::key(std::int32_t row) const {
  if (!keys_.live(row)) bad_row("row", row, " is not a live row");
  return keys_.key(row);
}

std::string Table::keys(Rows rows, std::uint32_t* ends) const {
  check_live(rows, "rows");
  std::string blob;
  for (std::size_t i = 0; i < rows.size(); i++) append_key(blob, rows[i], ends[i]);
  return blob;
}

std::string Table::parent_keys(Rows rows, std::uint32_t* ends) const {
  check_live(rows, "rows");
  std::string blob;
  for (std::size_t i = 0; i < rows.size(); i++) append_key(blob, tree.parent[rows[i]], ends[i]);
  return blob;
}

// No row, no bytes.
void Table::append_key(std::string& blob, std::int32_t row, std::uint32_t& end) const {
  if (row >= 0) blob += keys_.key(row);
  if (blob.size() > UINT32_MAX) throw std::invalid_argument("keys of over 4 GiB in one call");
  end = static_cast<std::uint32_t>(blob.size());
}

void Table::erase(Rows rows) {
  check_live(rows, "rows");
  tree.marks.begin();
  for (const std::int32_t row : rows) {
    if (tree.marks.seen(row)) bad_row("rows", row, " is named twice");
    if (replicas.head[row] >= 0) bad_value("rows", row, " still has a replica");
    for (std::int32_t at = tree.first_child[row]; at >= 0; at = tree.next_sibling[at]) {
      if (!tree.marks.seen(at)) bad_value("rows", row, " still has children");
    }
    tree.marks.mark(row);
  }
  for (const std::int32_t row : rows) tree.unlink(row);
  keys_.erase(rows);
}

std::pair<Table::RowList, std::int64_t> Table::scan(std::int64_t start, std::int64_t max,
                                                    std::string_view prefix) const {
  if (start < 0 || max < 1) {
    throw std::invalid_argument("start_row must be at least 0 and rows_max at least 1");
  }
  RowList found;
  const std::int64_t high = keys_.high();
  if (start >= high) return {found, -1};
  const std::int64_t stop = max < high - start ? start + max : high;
  for (auto row = static_cast<std::int32_t>(start); row < stop; row++) {
    if (keys_.live(row) && keys_.key(row).starts_with(prefix)) found.push_back(row);
  }
  return {found, stop < high ? stop : -1};
}

void Table::set_parent(Rows rows, Rows parents, bool* linked) {
  same_length(rows.size(), parents);
  check_live(rows, "rows");
  for (const std::int32_t parent : parents) {
    if (parent != -1 && !keys_.live(parent)) bad_row("parents", parent, " is not a live row");
  }
  for (std::size_t i = 0; i < rows.size(); i++) linked[i] = tree.link(rows[i], parents[i]);
}

Table::RowList Table::descendants(Rows rows) {
  check_live(rows, "rows");
  return tree.descendants(rows);
}

Table::RowList Table::ancestors_order(Rows rows) {
  check_live(rows, "rows");
  return tree.ancestors(rows);
}

std::size_t Table::memory_bytes() const {
  // Caller's columns, five tree columns, marks and the head of the replica chain.
  constexpr std::size_t kPerRow = 4 * 1 + 2 * 4 + 4 * 8 + 8 + 5 * 4 + 4 + 4;
  return static_cast<std::size_t>(keys_.high()) * kPerRow + keys_.memory_bytes() +
         replicas.memory_bytes();
}

void Table::add_replicas(Rows rows, std::span<const std::uint16_t> segments,
                         std::span<const std::uint32_t> slots,
                         std::span<const std::uint64_t> generations, std::int32_t* added) {
  same_length(rows.size(), segments, slots, generations);
  check_live(rows, "rows");
  check_room(rows.size());
  const std::int32_t high = replicas.high();
  for (std::size_t i = 0; i < rows.size(); i++) {
    if (replicas.count(rows[i]) >= kReplicasPerObjectMax) {
      while (i-- > 0) replicas.undo_add(added[i], high);
      throw std::invalid_argument("rows: one would have over 255 replicas");
    }
    added[i] = replicas.add(rows[i], segments[i], slots[i], generations[i]);
  }
}

void Table::remove_replicas(Rows rows) {
  check_live_replicas(rows);
  check_once(rows);
  for (const std::int32_t row : rows) replicas.remove(row);
}

Table::RowList Table::replicas_of(Rows rows, std::uint8_t* counts) const {
  check_live(rows, "rows");
  RowList found;
  found.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); i++) {
    const std::size_t before = found.size();
    for (std::int32_t at = replicas.head[rows[i]]; at >= 0; at = replicas.next[at]) {
      found.push_back(at);
    }
    counts[i] = static_cast<std::uint8_t>(found.size() - before);
  }
  return found;
}

void Table::list_push(std::int64_t list_id, Rows rows) {
  const std::int32_t to = check_list(list_id);
  check_live_replicas(rows);
  check_once(rows);
  check_listed(rows, false);
  for (const std::int32_t row : rows) replicas.push(to, row);
}

void Table::list_remove(Rows rows) {
  check_live_replicas(rows);
  check_once(rows);
  check_listed(rows, true);
  for (const std::int32_t row : rows) replicas.take(row);
}

void Table::list_touch(Rows rows) {
  check_live_replicas(rows);
  check_listed(rows, true);
  for (const std::int32_t row : rows) replicas.touch(row);
}

std::size_t Table::list_length(std::int64_t list_id) const {
  return replicas.list_length(check_list(list_id));
}

Table::RowList Table::list_tail(std::int64_t list_id, std::int64_t n, std::int64_t skip) const {
  if (n < 0 || skip < 0) throw std::invalid_argument("n and skip must be at least 0");
  return replicas.tail(check_list(list_id), static_cast<std::size_t>(n),
                       static_cast<std::size_t>(skip));
}

Table::RowList Table::list_iter(std::int64_t list_id) const {
  return replicas.tail(check_list(list_id), SIZE_MAX, 0);
}

void Table::touch_rows(const RowList& rows) {
  for (const std::int32_t row : rows) {
    for (std::int32_t at = replicas.head[row]; at >= 0; at = replicas.next[at]) {
      if (replicas.listed(at)) replicas.touch(at);
    }
  }
}

std::size_t Table::touch_objects(Rows rows, std::span<const std::uint64_t> seqs) {
  same_length(rows.size(), seqs);
  RowList current;
  current.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); i++) {
    if (keys_.live(rows[i]) && seq[rows[i]] == seqs[i]) current.push_back(rows[i]);
  }
  touch_rows(tree.ancestors(current));
  return current.size();
}

void Table::reserve_batch(Rows rows, std::span<const std::uint64_t> sizes,
                          const Reservation& with) {
  same_length(rows.size(), sizes);
  check_live(rows, "rows");
  for (std::size_t i = 0; i < rows.size(); i++) {
    const std::int32_t row = rows[i];
    state[row] = with.state;
    wanted[row] = with.wanted;
    pin[row] = with.pin;
    flags[row] = 0;
    crc[row] = 0;
    tenant[row] = with.tenant;
    term[row] = with.term;
    seq[row] = with.first_seq + i;
    attempt[row] = with.first_attempt + i;
    object_size[row] = sizes[i];
    expiry_ms[row] = with.expiry_ms;
  }
}

void Table::commit_batch(const Commit& commit, std::uint8_t* status, std::int32_t* added) {
  const Rows rows = commit.rows;
  same_length(rows.size(), commit.attempts, commit.segments, commit.slots, commit.generations,
              commit.crcs);
  for (const std::uint16_t segment : commit.segments) check_list(segment);
  check_room(rows.size());
  RowList done;
  done.reserve(rows.size());
  tree.marks.begin();
  replicas.marks.begin();
  for (std::size_t i = 0; i < rows.size(); i++) {
    const std::int32_t row = rows[i];
    status[i] = kStale;
    added[i] = -1;
    if (!keys_.live(row) || attempt[row] != commit.attempts[i]) continue;
    if (!tree.marks.seen(row) && state[row] != commit.state_from) continue;
    if (replicas.count(row) >= kReplicasPerObjectMax) continue;
    state[row] = commit.state_to;
    crc[row] = commit.crcs[i];
    added[i] = replicas.add(row, commit.segments[i], commit.slots[i], commit.generations[i]);
    replicas.marks.mark(added[i]);
    status[i] = kCommitted;
    if (tree.marks.mark(row)) done.push_back(row);
  }
  // The batch names parents before children; recency wants the last block first.
  std::reverse(done.begin(), done.end());
  for (const std::int32_t row : done) {
    for (std::int32_t at = replicas.head[row]; at >= 0; at = replicas.next[at]) {
      if (replicas.marks.seen(at)) replicas.push(replicas.segment[at], at);
    }
  }
  if (commit.touch_ancestors) touch_rows(tree.ancestors(done));
}

}  // namespace moonpool
