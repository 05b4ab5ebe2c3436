// Requests on the objects of attached segments. A window on a slot is held from the moment its
// bytes may move until they have, and closed on every way out; a claim ends sealed or aborted.
#include "server_objects.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "server_request.hpp"

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

namespace {

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

void abort_claim(SegmentAgent& agent, std::uint32_t slot, std::uint64_t generation) {
  Status status;
  guarded([&] { agent.abort({&slot, 1}, {&generation, 1}, {&status, 1}); });
}

std::uint8_t* memory_of(const Part& part) { return reinterpret_cast<std::uint8_t*>(part.data); }

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

class ReadObjects : public ObjectRequest {
 public:
  using ObjectRequest::ObjectRequest;
  ~ReadObjects() override { close_windows(); }

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    std::uint64_t total = 0;
    return load_blocks(meta, header.count, &blocks_) &&
           sum_lengths(blocks_, context_.options.frame_payload_bytes_max, &total);
  }

  void answer(OutFrame& reply) override {
    std::vector<std::uint64_t> lengths(header.count, 0);
    open_.assign(header.count, 0);
    bool ranges = false;
    with_agent([&] {
      for (std::uint32_t i = 0; i < header.count; i++) {
        lengths[i] = open(i, reply);
        ranges = ranges || !has_stored_crc(i);
      }
    });
    // Whole objects have their stored CRC; of a range it has to be computed.
    reply.checksum = ranges && (header.flags & wire::kFlagChecksum);
    reply_meta.resize(lengths.size() * 8);
    if (!lengths.empty()) std::memcpy(reply_meta.data(), lengths.data(), reply_meta.size());
  }

  // While the windows are open the memory cannot be reused, so the bytes that leave after this look
  // are the ones looked at.
  void recheck(const OutFrame& reply) override {
    if (released_) return;
    for (std::uint32_t i = 0; i < open_.size(); i++) {
      if (!open_[i]) continue;
      if (!agent_->still(blocks_[i].slot, blocks_[i].generation, SlotState::kSealed)) {
        records[i].status = code(Status::kMoved);
      }
      if (reply.checksum && !has_stored_crc(i)) records[i].crc = reply.crcs[i];
    }
  }

  void release(Status why) override {
    close_windows();
    ObjectRequest::release(why);
  }

 private:
  bool has_stored_crc(std::uint32_t i) const { return blocks_[i].whole && blocks_[i].offset == 0; }

  // Opens block i's window; the bytes it adds to the payload.
  std::uint64_t open(std::uint32_t i, OutFrame& reply) {
    const auto& block = blocks_[i];
    Window window = agent_->open_read(block.slot, block.generation, block.offset,
                                      block.whole ? moonpool::kWholeObject : block.length);
    auto& record = records[i];
    record.status = code(window.status);
    record.slot = block.slot;
    record.generation = block.generation;
    record.size = block.whole ? window.size : block.length;
    if (window.status != Status::kOk) return 0;
    open_[i] = 1;
    record.crc = has_stored_crc(i) ? window.crc : 0;
    std::uint64_t length = block.whole ? window.size - block.offset : block.length;
    if (length > block.length) {
      record.status = code(Status::kBounds);  // the receiver's room is too small
      open_[i] = 0;
      agent_->close_read(block.slot, block.generation);
      return 0;
    }
    for (const Part& part : window.parts) reply.pieces.push_back({memory_of(part), part.bytes, i});
    return length;
  }

  void close_windows() {
    for (std::uint32_t i = 0; i < open_.size(); i++) {
      if (!std::exchange(open_[i], 0)) continue;
      guarded([&] { agent_->close_read(blocks_[i].slot, blocks_[i].generation); });
    }
  }

  std::vector<wire::ObjectBlock> blocks_;
  std::vector<std::uint8_t> open_;
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

void note_claim(wire::ReplyRecord& record, const Claimed& claimed) {
  record.status = code(claimed.status);
  record.slot = claimed.slot;
  record.generation = claimed.generation;
}

// Takes payload into slots that are being written.
class IntoSlots : public ObjectRequest {
 public:
  using ObjectRequest::ObjectRequest;

  void check(std::span<Piece> remaining) override {
    if (remaining.empty()) return;
    std::uint32_t block = remaining.front().block;
    if (!open_[block] ||
        agent_->still(records[block].slot, records[block].generation, SlotState::kWriting)) {
      return;
    }
    for (Piece& piece : remaining) {
      if (piece.block != block) break;
      piece.memory = nullptr;
    }
  }

 protected:
  // Adds the window's memory for block i to `pieces`, or a sink of `size` bytes.
  void lay_out(std::uint32_t i, std::uint64_t size, const Window& window,
               std::vector<Piece>* pieces) {
    if (window.status != Status::kOk) {
      pieces->push_back({nullptr, size, i});
      return;
    }
    open_[i] = 1;
    for (const Part& part : window.parts) pieces->push_back({memory_of(part), part.bytes, i});
  }

  // Closes block i's window: was the slot still being written?
  Status close_window(std::uint32_t i) {
    open_[i] = 0;
    Status status = Status::kNotFound;
    guarded([&] { status = agent_->close_write(records[i].slot, records[i].generation); });
    return status;
  }

  std::vector<std::uint8_t> open_;
};

class PutObjects : public IntoSlots {
 public:
  using IntoSlots::IntoSlots;
  ~PutObjects() override { give_up(); }

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>* pieces) override {
    ClaimBatch batch;
    if (!batch.load(meta, header.count)) return false;
    std::uint64_t left = header.payload_bytes;
    for (const auto& record : batch.records) {
      if (record.size > left) return false;
      left -= record.size;
    }
    if (left != 0) return false;
    open_.assign(header.count, 0);
    std::vector<Claimed> claimed;
    with_agent([&] { claimed = batch.claim(*agent_, header.term); });
    for (std::uint32_t i = 0; i < header.count; i++) {
      Window window;
      if (!claimed.empty()) {
        note_claim(records[i], claimed[i]);
        if (claimed[i].status == Status::kOk) {
          guarded([&] {
            window = agent_->open_write(claimed[i].slot, claimed[i].generation, 0,
                                        moonpool::kWholeObject);
          });
          if (window.status != Status::kOk) {
            records[i].status = code(window.status);
            abort_claim(*agent_, claimed[i].slot, claimed[i].generation);
          }
        }
      }
      lay_out(i, batch.records[i].size, window, pieces);
      records[i].size = batch.records[i].size;
    }
    return true;
  }

  void complete(std::span<const std::uint32_t> crcs, std::span<const std::uint32_t> sent) override {
    if (released_) return;
    for (std::uint32_t i = 0; i < header.count; i++) {
      if (!open_[i]) continue;
      auto& record = records[i];
      Status status = close_window(i);
      if (status == Status::kOk && !sent.empty() && sent[i] != crcs[i]) status = Status::kCorrupt;
      record.crc = crcs[i];
      if (status == Status::kOk) {
        bool alive = guarded([&] {
          agent_->seal({&record.slot, 1}, {&record.generation, 1}, {&record.crc, 1}, 0, header.term,
                       {&status, 1});
        });
        if (!alive) status = Status::kNotFound;
      }
      if (status != Status::kOk) abort_claim(*agent_, record.slot, record.generation);
      record.status = code(status);
    }
  }

  void release(Status why) override {
    give_up();
    IntoSlots::release(why);
  }

 private:
  void give_up() {
    for (std::uint32_t i = 0; i < open_.size(); i++) {
      if (!open_[i]) continue;
      close_window(i);
      abort_claim(*agent_, records[i].slot, records[i].generation);
    }
  }
};

class WriteObject : public IntoSlots {
 public:
  using IntoSlots::IntoSlots;
  ~WriteObject() override { close_windows(); }

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>* pieces) override {
    std::vector<wire::ObjectBlock> blocks;
    std::uint64_t total = 0;
    if (!load_blocks(meta, header.count, &blocks) ||
        !sum_lengths(blocks, header.payload_bytes, &total)) {
      return false;
    }
    open_.assign(header.count, 0);
    for (std::uint32_t i = 0; i < header.count; i++) {
      const auto& block = blocks[i];
      Window window;
      bool alive =
          agent_ && guarded([&] {
            window = agent_->open_write(block.slot, block.generation, block.offset, block.length);
          });
      records[i] = {.status = code(alive ? window.status : Status::kNotFound),
                    .size = block.length,
                    .generation = block.generation,
                    .slot = block.slot};
      if (!alive) window.status = Status::kNotFound;
      lay_out(i, block.length, window, pieces);
    }
    return true;
  }

  void complete(std::span<const std::uint32_t> crcs, std::span<const std::uint32_t> sent) override {
    for (std::uint32_t i = 0; !released_ && i < header.count; i++) {
      if (!open_[i]) continue;
      Status status = close_window(i);
      if (status == Status::kOk && !sent.empty() && sent[i] != crcs[i]) status = Status::kCorrupt;
      records[i].crc = crcs[i];
      records[i].status = code(status);
    }
  }

  void release(Status why) override {
    close_windows();
    IntoSlots::release(why);
  }

 private:
  void close_windows() {
    for (std::uint32_t i = 0; i < open_.size(); i++) {
      if (open_[i]) close_window(i);
    }
  }
};

class ClaimSlots : public ObjectRequest {
 public:
  ClaimSlots(ServerContext& context, ConnectionClaims& claims, const wire::Header& header,
             std::int64_t deadline_ns)
      : ObjectRequest(context, header, deadline_ns), claims_(claims) {}

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    ClaimBatch batch;
    if (!batch.load(meta, header.count)) return false;
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

std::unique_ptr<ServerRequest> make_object_request(ServerContext& context, ConnectionClaims& claims,
                                                   const wire::Header& header,
                                                   std::int64_t deadline_ns) {
  switch (wire::Type{header.type}) {
    case wire::Type::kReadObjects:
      return std::make_unique<ReadObjects>(context, header, deadline_ns);
    case wire::Type::kPutObjects:
      return std::make_unique<PutObjects>(context, header, deadline_ns);
    case wire::Type::kWriteObject:
      return std::make_unique<WriteObject>(context, header, deadline_ns);
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
