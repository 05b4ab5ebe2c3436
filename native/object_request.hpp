// What all requests on an attached segment share. A window on a slot is held from the moment its
// bytes may move until they have, and closed on every way out; a claim ends sealed or aborted.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
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

  // An object of another tenant than the caller may touch: what is open on it is closed.
  bool foreign(const Window& window) const {
    return tenant && window.status == Status::kOk && window.tenant != *tenant;
  }

  // Whether the caller may end this claim; once seen so, it stays so as long as the generation.
  bool may_end(std::uint32_t slot, std::uint64_t generation) const {
    return !tenant || agent_->tenant_of(slot, generation) == *tenant;
  }

  const std::shared_ptr<SegmentAgent> agent_;
};

// Claims of a batch as they come in: for kClaim, and for the frames that bring the data along.
struct ClaimBatch {
  wire::Writer writer;
  std::vector<ClaimRecord> records;
  std::string_view blob;
  std::string scoped;  // holds the blob once it is confined

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

  // Keys become those of one tenant, which are its own however they are called (core/tenants.py).
  void confine(std::uint32_t tenant) {
    std::string scope(1, '\0');
    for (int shift = 0; shift < 32; shift += 8) {
      scope.push_back(static_cast<char>(tenant >> shift & 0xff));
    }
    const auto take = [&](std::uint16_t& size) {
      if (size == 0) return;
      // What leaves the range of the field was too long for a key before.
      const std::size_t kept = std::min<std::size_t>(size, 0xffff - scope.size());
      scoped.append(scope).append(blob.substr(0, kept));
      blob.remove_prefix(size);
      size = static_cast<std::uint16_t>(scope.size() + kept);
    };
    for (ClaimRecord& record : records) {
      take(record.key_len);
      take(record.parent_len);
      record.tenant = tenant;
    }
    blob = scoped;
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
