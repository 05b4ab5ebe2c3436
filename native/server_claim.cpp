// Claims and their ends, without payload.
#include "object_request.hpp"

namespace moonpool {
namespace {

class ClaimSlots : public ObjectRequest {
 public:
  ClaimSlots(ServerContext& context, ConnectionClaims& claims, const wire::Header& header,
             std::int64_t deadline_ns)
      : ObjectRequest(context, header, deadline_ns), claims_(claims) {}

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    ClaimBatch batch;
    if (!batch.load(meta, header.count)) return false;
    if (tenant) batch.confine(*tenant);
    bool of_connection = batch.writer.row < 0;
    if (of_connection && !claims_.has_room(header.count)) {
      set_all(Status::kBusy);
      return true;
    }
    with_agent([&] {
      std::vector<Claimed> claimed = batch.claim(*agent_, header.term);
      for (std::uint32_t i = 0; i < header.count; i++) {
        note_claim(records[i], claimed[i]);
        records[i].size = batch.records[i].size;
        if (of_connection && claimed[i].status == Status::kOk) {
          claims_.add(agent_, claimed[i].slot, claimed[i].generation);
        }
      }
    });
    return true;
  }

 private:
  ConnectionClaims& claims_;
};

class EndClaims : public ObjectRequest {
 public:
  EndClaims(ServerContext& context, ConnectionClaims& claims, const wire::Header& header,
            std::int64_t deadline_ns)
      : ObjectRequest(context, header, deadline_ns), claims_(claims) {}

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    std::vector<wire::SlotBlock> blocks;
    if (!load_blocks(meta, header.count, &blocks)) return false;
    std::vector<std::uint32_t> slots, crcs;
    std::vector<std::uint64_t> generations;
    for (const auto& block : blocks) {
      slots.push_back(block.slot);
      crcs.push_back(block.crc);
      generations.push_back(block.generation);
    }
    std::vector<Status> status(header.count, Status::kInternal);
    bool seals = wire::Type{header.type} == wire::Type::kSeal;
    bool done = with_agent([&] {
      for (std::uint32_t i = 0; i < header.count; i++) {
        // A generation that no slot ever has: it ends nothing.
        if (!may_end(slots[i], generations[i])) generations[i] = ~std::uint64_t{0} >> 8;
      }
      if (seals) {
        std::uint32_t flags = header.flags & wire::kFlagAgentCrc ? kSealComputesCrc : 0;
        agent_->seal(slots, generations, crcs, flags, header.term, status);
      } else {
        agent_->abort(slots, generations, status);
      }
    });
    for (std::uint32_t i = 0; done && i < header.count; i++) {
      records[i] = {.status = code(status[i]),
                    .crc = crcs[i],
                    .generation = generations[i],
                    .slot = slots[i]};
      if (status[i] == Status::kOk) claims_.remove(*agent_, slots[i], generations[i]);
    }
    return true;
  }

 private:
  ConnectionClaims& claims_;
};

}  // namespace

std::unique_ptr<ServerRequest> make_object_request(ServerContext& context, ConnectionClaims& claims,
                                                   const wire::Header& header,
                                                   std::int64_t deadline_ns) {
  switch (wire::Type{header.type}) {
    case wire::Type::kReadObjects:
      return make_read_request(context, header, deadline_ns);
    case wire::Type::kGatherRows:
      return make_gather_request(context, header, deadline_ns);
    case wire::Type::kPutObjects:
    case wire::Type::kWriteObject:
      return make_write_request(context, header, deadline_ns);
    case wire::Type::kClaim:
      return std::make_unique<ClaimSlots>(context, claims, header, deadline_ns);
    case wire::Type::kSeal:
    case wire::Type::kAbort:
      return std::make_unique<EndClaims>(context, claims, header, deadline_ns);
    default:
      return nullptr;
  }
}

}  // namespace moonpool
