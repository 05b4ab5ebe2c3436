// Sets of holders, each kept once: entries name them by number, so that an entry's size does not
// depend on how many hold it, and a holder that goes away is taken out of the sets (hundreds), not
// of the entries (millions).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moonpool {

class HolderSets {
 public:
  static constexpr std::uint32_t kEmpty = 0;

  HolderSets();

  // The set that `set` stands for now: dropping a holder can make two sets the same.
  std::uint32_t resolve(std::uint32_t set) const {
    while (records_[set].forward != kNone) set = records_[set].forward;
    return set;
  }
  bool contains(std::uint32_t resolved, std::uint32_t holder) const {
    const std::size_t word = holder / 64;
    return word < stride_ && (bits(resolved)[word] >> (holder % 64) & 1) != 0;
  }
  std::span<const std::uint64_t> words(std::uint32_t resolved) const {
    return {bits(resolved), stride_};
  }

  // The set with, or without, one holder; made when new. Give it an entry before the next call.
  std::uint32_t with(std::uint32_t resolved, std::uint32_t holder);
  std::uint32_t without(std::uint32_t resolved, std::uint32_t holder);

  // An entry that named `from` (as it stands there, unresolved) names `to` from now on.
  void move_entry(std::uint32_t from, std::uint32_t to);
  void add_entry(std::uint32_t set) { count(set, 1); }
  void drop_entry(std::uint32_t set);

  // Takes the holder out of every set. How many entries nobody holds any more.
  std::size_t erase_holder(std::uint32_t holder);

  std::size_t size() const { return records_.size() - free_.size(); }
  std::size_t memory_bytes() const;  // all that is allocated
  std::size_t bytes_used() const { return size() * (sizeof(Record) + stride_ * 8); }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Record {
    std::uint64_t hash = 0;         // exclusive or of its holders' own words
    std::uint64_t total = 0;        // entries that stand for it, forwarded ones included
    std::uint32_t entries = 0;      // entries that name it
    std::uint32_t links = 0;        // sets forwarded to it
    std::uint32_t forward = kNone;  // another set of the same holders
    bool interned = false;          // found through its holders
  };

  std::uint64_t* bits(std::uint32_t set) { return bits_.data() + set * stride_; }
  const std::uint64_t* bits(std::uint32_t set) const { return bits_.data() + set * stride_; }
  void reach(std::uint32_t holder);
  std::uint32_t changed(std::uint32_t set, std::uint32_t holder, bool present);
  std::uint32_t found_or_made(std::uint32_t set, std::uint32_t holder);
  std::uint32_t find_changed(std::uint32_t set, std::uint32_t holder, std::uint64_t hash) const;
  std::uint32_t make(std::uint32_t like, std::uint32_t holder, std::uint64_t hash);
  void count(std::uint32_t set, std::int64_t entries);
  void release(std::uint32_t set);
  void intern(std::uint32_t set);
  void forget(std::uint32_t set);
  std::size_t slot_of(std::uint64_t hash) const { return hash & (table_.size() - 1); }
  void rehash(std::size_t slots);

  std::size_t stride_ = 1;
  std::vector<std::uint64_t> bits_;
  std::vector<Record> records_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> table_;  // linear probing over set numbers, kNone where empty
  std::size_t interned_ = 0;
  // The last change of a set by a holder, as most are of one run: true until a set is forgotten.
  std::uint32_t last_set_ = kNone, last_holder_ = kNone, last_result_ = kNone;
};

}  // namespace moonpool
