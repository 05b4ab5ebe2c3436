// Requests on registered regions, and those about the endpoint itself.
#include <optional>

#include "server_request.hpp"

namespace moonpool {

namespace {

// The region a request names, if it is of this very process.
std::optional<Region> target_region(const ServerContext& context, const wire::Header& header) {
  auto id = wire::load<std::uint64_t>(header.target.data());
  auto epoch = wire::load<std::uint64_t>(header.target.data() + 8);
  if (epoch != context.epoch) return std::nullopt;
  return context.regions.find(id);
}

class ReadRaw : public ServerRequest {
 public:
  using ServerRequest::ServerRequest;

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    std::uint64_t total = 0;
    return load_blocks(meta, header.count, &blocks_) &&
           sum_lengths(blocks_, context_.options.frame_payload_bytes_max, &total);
  }

  void answer(OutFrame& reply) override {
    auto region = target_region(context_, header);
    if (!region) set_all(Status::kNotFound);
    reply.checksum = header.flags & wire::kFlagChecksum;
    std::vector<std::uint64_t> lengths(header.count, 0);
    for (std::uint32_t i = 0; region && i < header.count; i++) {
      const auto& block = blocks_[i];
      if (!within(block.offset, block.length, region->size)) {
        records[i].status = code(Status::kBounds);
        continue;
      }
      lengths[i] = records[i].size = block.length;
      reply.pieces.push_back({region->memory + block.offset, block.length, i});
    }
    reply_meta.resize(lengths.size() * 8);
    if (!lengths.empty()) std::memcpy(reply_meta.data(), lengths.data(), reply_meta.size());
  }

  void recheck(const OutFrame& reply) override {
    if (released_ || !reply.checksum) return;
    for (std::uint32_t i = 0; i < header.count; i++) records[i].crc = reply.crcs[i];
  }

 private:
  std::vector<wire::RawBlock> blocks_;
};

class WriteRaw : public ServerRequest {
 public:
  using ServerRequest::ServerRequest;

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>* pieces) override {
    std::vector<wire::RawBlock> blocks;
    std::uint64_t total = 0;
    if (!load_blocks(meta, header.count, &blocks) ||
        !sum_lengths(blocks, header.payload_bytes, &total)) {
      return false;
    }
    auto region = target_region(context_, header);
    for (std::uint32_t i = 0; i < header.count; i++) {
      const auto& block = blocks[i];
      Status status = !region                                             ? Status::kNotFound
                      : !region->writable                                 ? Status::kRefused
                      : !within(block.offset, block.length, region->size) ? Status::kBounds
                                                                          : Status::kOk;
      records[i].status = code(status);
      records[i].size = status == Status::kOk ? block.length : 0;
      pieces->push_back(
          {status == Status::kOk ? region->memory + block.offset : nullptr, block.length, i});
    }
    return true;
  }

  void complete(std::span<const std::uint32_t> crcs, std::span<const std::uint32_t> sent) override {
    if (released_ || crcs.empty()) return;
    for (std::uint32_t i = 0; i < header.count; i++) {
      if (records[i].status != code(Status::kOk)) continue;
      records[i].crc = crcs[i];
      if (!sent.empty() && sent[i] != crcs[i]) records[i].status = code(Status::kCorrupt);
    }
  }
};

class Ping : public ServerRequest {
 public:
  using ServerRequest::ServerRequest;
  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    return meta.empty() && header.count == 0;
  }
};

class ShowDirectory : public Ping {
 public:
  using Ping::Ping;
  void answer(OutFrame&) override { reply_meta = encode_directory(context_.directory()); }
};

class ShareRegion : public ServerRequest {
 public:
  using ServerRequest::ServerRequest;
  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    return meta.empty() && header.count == 1;
  }
  void answer(OutFrame& reply) override {
    auto region = target_region(context_, header);
    if (!region || !region->shared) return set_all(Status::kNotFound);
    shared_ = region->shared;
    records[0].size = region->size;
    records[0].crc = region->writable;  // how the receiver may map it
    reply.shared_fd = shared_->fd();
  }

 private:
  std::shared_ptr<SharedMemory> shared_;
};

}  // namespace

std::unique_ptr<ServerRequest> make_raw_request(ServerContext& context, const wire::Header& header,
                                                std::int64_t deadline_ns) {
  switch (wire::Type{header.type}) {
    case wire::Type::kPing:
      return std::make_unique<Ping>(context, header, deadline_ns);
    case wire::Type::kReadRaw:
      return std::make_unique<ReadRaw>(context, header, deadline_ns);
    case wire::Type::kWriteRaw:
      return std::make_unique<WriteRaw>(context, header, deadline_ns);
    case wire::Type::kDirectory:
      return std::make_unique<ShowDirectory>(context, header, deadline_ns);
    case wire::Type::kShareRegion:
      return std::make_unique<ShareRegion>(context, header, deadline_ns);
    default:
      return nullptr;
  }
}

}  // namespace moonpool
