// Reads of sealed objects.
#include <utility>

#include "object_request.hpp"

namespace moonpool {
namespace {

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
    if (foreign(window)) {
      agent_->close_read(block.slot, block.generation);
      window = {Status::kRefused, 0, 0, {}};
    }
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

}  // namespace

std::unique_ptr<ServerRequest> make_read_request(ServerContext& context, const wire::Header& header,
                                                 std::int64_t deadline_ns) {
  return std::make_unique<ReadObjects>(context, header, deadline_ns);
}

}  // namespace moonpool
