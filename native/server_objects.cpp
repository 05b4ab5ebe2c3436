#include "server_objects.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

#include "object_request.hpp"

namespace moonpool {

wire::Id16 incarnation_of(const SegmentAgent& agent) {
  wire::Id16 id;
  std::memcpy(id.data(), agent.geometry().incarnation, id.size());
  return id;
}

void AgentTable::add(std::shared_ptr<SegmentAgent> agent) {
  std::lock_guard lock(mutex_);
  if (agents_.size() >= segments_max_) {
    throw std::length_error("segments_max = " + std::to_string(segments_max_) +
                            " segments are attached; detach some first");
  }
  wire::Id16 id = incarnation_of(*agent);
  if (!agents_.emplace(id, std::move(agent)).second) {
    throw std::invalid_argument("this segment is attached already");
  }
}

bool AgentTable::remove(const SegmentAgent& agent) {
  std::lock_guard lock(mutex_);
  return agents_.erase(incarnation_of(agent)) > 0;
}

std::shared_ptr<SegmentAgent> AgentTable::find(const wire::Id16& incarnation) const {
  std::lock_guard lock(mutex_);
  auto found = agents_.find(incarnation);
  return found == agents_.end() ? nullptr : found->second;
}

std::vector<SegmentOffer> AgentTable::offers() const {
  std::lock_guard lock(mutex_);
  std::vector<SegmentOffer> list;
  for (const auto& [id, agent] : agents_) {
    list.push_back({id, agent->geometry().capacity_bytes, agent->path().value_or("")});
  }
  return list;
}

void ConnectionClaims::add(const std::shared_ptr<SegmentAgent>& agent, std::uint32_t slot,
                           std::uint64_t generation) {
  open_.insert_or_assign(Slot{agent.get(), slot}, Claim{agent, generation});
}

void ConnectionClaims::remove(const SegmentAgent& agent, std::uint32_t slot,
                              std::uint64_t generation) {
  auto found = open_.find({&agent, slot});
  if (found != open_.end() && found->second.generation == generation) open_.erase(found);
}

void ConnectionClaims::abort(const SegmentAgent* agent) {
  for (auto at = open_.begin(); at != open_.end();) {
    if (agent && at->first.first != agent) {
      ++at;
      continue;
    }
    abort_claim(*at->second.agent, at->first.second, at->second.generation);
    at = open_.erase(at);
  }
}

}  // namespace moonpool
