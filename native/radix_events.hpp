// What happened in a prefix tree, for those who follow it: stored and removed pages by their
// routing hash, and for a policy outside each access.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace moonpool {

enum class RadixEvent : std::uint8_t { kStored, kRemoved, kCleared };

// Bounded: beyond `pages_max` named pages everything is forgotten and `lost` is set, and the
// follower starts again from a report of the whole tree.
class RadixEvents {
 public:
  struct Record {
    RadixEvent kind;
    bool first;  // the run starts a chain: `parent` is its namespace's seed
    std::string space;
    std::uint64_t parent;
    std::vector<std::uint64_t> hashes;
    std::vector<std::uint32_t> tokens;
  };

  explicit RadixEvents(std::size_t pages_max) : pages_max_(pages_max) {}

  bool on() const { return pages_max_ > 0 && !lost_ && !paused_; }
  void add(Record record) {
    if (!on()) return;
    pages_ += record.hashes.size() + 1;
    if (pages_ > pages_max_) {
      lose();
    } else {
      records_.push_back(std::move(record));
    }
  }
  bool lost() const { return lost_; }
  // Between the two nothing is told; then `instead` is.
  void pause() { paused_ = true; }
  void resume_with(Record instead) {
    paused_ = false;
    add(std::move(instead));
  }
  // Ends the loss: what is added from here on counts.
  std::vector<Record> take() {
    pages_ = 0;
    lost_ = false;
    return std::exchange(records_, {});
  }

 private:
  void lose() {
    lost_ = true;
    records_ = {};
    pages_ = 0;
  }

  std::size_t pages_max_;
  std::size_t pages_ = 0;
  bool lost_ = false, paused_ = false;
  std::vector<Record> records_;
};

// For a policy outside, since the last take: pages that came, were used again, or went by another
// way than evict_tail(). `depths` says how many pages stand before each in its chain.
struct RadixJournal {
  enum Kind : std::uint8_t { kTouched, kAdded, kRemoved };
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint32_t> depths;
  std::vector<std::uint8_t> kinds;

  // The end of the run first: a policy sees the start of a chain as the most recent.
  void add_reversed(std::span<const std::uint64_t> run, std::size_t start, Kind kind) {
    for (std::size_t i = run.size(); i > 0; i--) {
      hashes.push_back(run[i - 1]);
      depths.push_back(static_cast<std::uint32_t>(start + i - 1));
      kinds.push_back(kind);
    }
  }
};

}  // namespace moonpool
