// What all requests on an attached segment share. A window on a slot is held from the moment its
// bytes may move until they have, and closed on every way out; a claim ends sealed or aborted.
#pragma once
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "segment_agent.hpp"
#include "server_request.hpp"

namespace moonpool {

// A segment may be closed by its owner while it is attached; then the call is one on nothing.
template <class Call>
bool guarded(Call&& call) {
  try {
    call();
    return true;
  } catch (const SegmentError&) {
    return false;
  }
}

inline void abort_claim(SegmentAgent& agent, std::uint32_t slot, std::uint64_t generation) {
  Status status;
  guarded([&] { agent.abort({&slot, 1}, {&generation, 1}, {&status, 1}); });
}

inline std::uint8_t* memory_of(const Part& part) {
  return reinterpret_cast<std::uint8_t*>(part.data);
}

class ObjectRequest : public ServerRequest {
 public:
  ObjectRequest(ServerContext& context, const wire::Header& header, std::int64_t deadline_ns)
      : ServerRequest(context, header, deadline_ns), agent_(context.agents.find(header.target)) {}

 protected:
  // Runs a call on the segment; all records say kNotFound when there is none.
  template <class Call>
  bool with_agent(Call&& call) {
    if (agent_ && guarded(call)) return true;
    set_all(Status::kNotFound);
    return false;
  }

  const std::shared_ptr<SegmentAgent> agent_;
};

// Claims of a batch as they come in: for kClaim, and for the frames that bring the data along.
struct ClaimBatch {
  wire::Writer writer;
  std::vector<ClaimRecord> records;
  std::string_view blob;

  // False when meta is not a writer, `count` records and exactly their keys.
  bool load(std::span<const std::uint8_t> meta, std::uint32_t count) {
    std::size_t fixed = sizeof(writer) + std::size_t{count} * sizeof(ClaimRecord);
    if (meta.size() < fixed) return false;
    writer = wire::load<wire::Writer>(meta.data());
    records.resize(count);
    if (count > 0) {
      std::memcpy(records.data(), meta.data() + sizeof(writer), count * sizeof(ClaimRecord));
    }
    blob = {reinterpret_cast<const char*>(meta.data()) + fixed, meta.size() - fixed};
    std::size_t text = 0;
    for (const auto& record : records) text += std::size_t{record.key_len} + record.parent_len;
    return text == blob.size();
  }

  std::vector<Claimed> claim(SegmentAgent& agent, std::uint64_t term) const {
    std::vector<Claimed> claimed(records.size());
    std::uint32_t row = writer.row < 0 ? kNoRow : static_cast<std::uint32_t>(writer.row);
    agent.claim(records, blob, term, row, writer.row_epoch, claimed);
    return claimed;
  }
};

inline void note_claim(wire::ReplyRecord& record, const Claimed& claimed) {
  record.status = code(claimed.status);
  record.slot = claimed.slot;
  record.generation = claimed.generation;
}

std::unique_ptr<ServerRequest> make_read_request(ServerContext& context, const wire::Header& header,
                                                 std::int64_t deadline_ns);
std::unique_ptr<ServerRequest> make_gather_request(ServerContext& context,
                                                   const wire::Header& header,
                                                   std::int64_t deadline_ns);
// Puts and pieces of objects: frames that bring payload.
std::unique_ptr<ServerRequest> make_write_request(ServerContext& context,
                                                  const wire::Header& header,
                                                  std::int64_t deadline_ns);

}  // namespace moonpool
