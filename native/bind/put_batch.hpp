// A batch of objects laid out to leave in one frame, once the master has said under which numbers.
// What does not depend on its answer is done while that is on its way: the callers' buffers held,
// the claims and their keys written down.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "buffer.hpp"
#include "segment_agent.hpp"

namespace moonpool {

class PutBatch {
 public:
  // `parents`: None, or one key each, empty where there is none.
  // Throws when a source is not of its size any more.
  PutBatch(const nanobind::list& keys, const nanobind::list& sources, nanobind::handle sizes,
           nanobind::handle parents, std::uint8_t replicas, std::int64_t expiry_ms,
           std::uint32_t tenant, std::uint8_t pin);
  PutBatch(const PutBatch&) = delete;
  PutBatch& operator=(const PutBatch&) = delete;

  std::size_t size() const { return records_.size(); }
  std::span<const Buffer> sources() const { return sources_; }
  std::span<const std::uint8_t> blob() const { return blob_; }
  // Its claims under these numbers of one term; throws when they are not as many.
  std::span<const std::uint8_t> numbered(std::uint64_t term,
                                         std::span<const std::uint64_t> sequences);
  // The sources go with the frame that sends them.
  std::vector<Buffer> take_sources() { return std::move(sources_); }

 private:
  std::vector<Buffer> sources_;
  std::vector<ClaimRecord> records_;
  std::vector<std::uint8_t> blob_;
};

}  // namespace moonpool
