// What an endpoint serves from attached segments, and the claims a connection holds on them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "frame.hpp"
#include "hello.hpp"
#include "segment_agent.hpp"

namespace moonpool {

// The attached segments, by incarnation. Thread-safe.
class AgentTable {
 public:
  explicit AgentTable(std::size_t segments_max) : segments_max_(segments_max) {}
  // Throws std::invalid_argument when it is attached already, std::length_error when full.
  void add(std::shared_ptr<SegmentAgent> agent);
  bool remove(const SegmentAgent& agent);
  std::shared_ptr<SegmentAgent> find(const wire::Id16& incarnation) const;
  std::vector<SegmentOffer> offers() const;

 private:
  const std::size_t segments_max_;
  mutable std::mutex mutex_;
  std::map<wire::Id16, std::shared_ptr<SegmentAgent>> agents_;
};

wire::Id16 incarnation_of(const SegmentAgent& agent);

// Claims made over one connection for no client row: without the connection nobody can write to
// them, so they end with it. Claims of a row belong to a process that maps the segment, and stay.
class ConnectionClaims {
 public:
  explicit ConnectionClaims(std::size_t claims_max) : claims_max_(claims_max) {}
  bool has_room(std::size_t count) const { return count <= claims_max_ - open_.size(); }
  void add(const std::shared_ptr<SegmentAgent>& agent, std::uint32_t slot,
           std::uint64_t generation);
  void remove(const SegmentAgent& agent, std::uint32_t slot, std::uint64_t generation);
  // Aborts those of one segment, or all.
  void abort(const SegmentAgent* agent);

 private:
  using Slot = std::pair<const SegmentAgent*, std::uint32_t>;
  struct Claim {
    std::shared_ptr<SegmentAgent> agent;
    std::uint64_t generation;
  };
  const std::size_t claims_max_;
  std::map<Slot, Claim> open_;
};

}  // namespace moonpool
