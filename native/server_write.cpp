// Payload into slots that are being written: whole objects with their claims, and pieces of claimed
// ones.
#include "object_request.hpp"

namespace moonpool {
namespace {

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
    if (tenant) batch.confine(*tenant);
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
            if (foreign(window)) {
              agent_->close_write(block.slot, block.generation);
              window = {Status::kRefused, 0, 0, {}};
            }
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

}  // namespace

std::unique_ptr<ServerRequest> make_write_request(ServerContext& context,
                                                  const wire::Header& header,
                                                  std::int64_t deadline_ns) {
  if (wire::Type{header.type} == wire::Type::kPutObjects) {
    return std::make_unique<PutObjects>(context, header, deadline_ns);
  }
  return std::make_unique<WriteObject>(context, header, deadline_ns);
}

}  // namespace moonpool
