#include "endpoint_requests.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace moonpool {
namespace {

constexpr std::uint64_t kSmallBytes = 256 << 10;

void check_raw(std::span<const std::uint64_t> remote_offsets,
               std::span<const std::uint64_t> lengths, RawMemory local,
               std::span<const std::uint64_t> offsets, std::uint64_t payload_bytes_max) {
  if (remote_offsets.size() != lengths.size() || offsets.size() != lengths.size()) {
    throw std::invalid_argument(
        "offsets and lengths must have one length, got " + std::to_string(remote_offsets.size()) +
        ", " + std::to_string(lengths.size()) + ", " + std::to_string(offsets.size()));
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < lengths.size(); i++) {
    if (!within(offsets[i], lengths[i], local.size)) {
      throw std::invalid_argument("block " + std::to_string(i) + " [" + std::to_string(offsets[i]) +
                                  ", +" + std::to_string(lengths[i]) +
                                  ") is outside the local buffer of " + std::to_string(local.size) +
                                  " bytes");
    }
    if (lengths[i] > payload_bytes_max - total) {
      throw std::invalid_argument("a batch moves at most frame_payload_bytes_max = " +
                                  std::to_string(payload_bytes_max) + " bytes");
    }
    total += lengths[i];
  }
}

Submission raw(Endpoint& endpoint, const ClientConnection& peer, wire::Type type,
               std::uint64_t region, std::span<const std::uint64_t> remote_offsets,
               std::span<const std::uint64_t> lengths, std::int64_t deadline_ms, bool checksum) {
  Submission submission;
  submission.op = endpoint.make_op(type, lengths.size(), deadline_ms);
  submission.flags = checksum ? wire::kFlagChecksum : 0;
  submission.target = wire::region_target(region, peer.peer_epoch());
  submission.meta.resize(lengths.size() * sizeof(wire::RawBlock));
  for (std::size_t i = 0; i < lengths.size(); i++) {
    wire::RawBlock block{remote_offsets[i], lengths[i]};
    std::memcpy(submission.meta.data() + i * sizeof(block), &block, sizeof(block));
  }
  return submission;
}

}  // namespace

std::uint64_t Submission::nbytes() const {
  std::uint64_t bytes = meta.size();
  for (const Piece& piece : pieces) bytes += piece.size;
  for (const Op::Room& room : op->rooms) bytes += room.size;
  return bytes;
}

bool Submission::small() const { return nbytes() <= kSmallBytes; }

Submission read_raw(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                    std::span<const std::uint64_t> remote_offsets,
                    std::span<const std::uint64_t> lengths, RawMemory destination,
                    std::span<const std::uint64_t> offsets, std::int64_t deadline_ms,
                    bool checksum) {
  check_raw(remote_offsets, lengths, destination, offsets,
            endpoint.options().frame_payload_bytes_max);
  Submission submission = raw(endpoint, peer, wire::Type::kReadRaw, region, remote_offsets, lengths,
                              deadline_ms, checksum);
  submission.op->checksum = checksum;
  submission.op->rooms.reserve(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); i++) {
    submission.op->rooms.push_back({destination.memory + offsets[i], lengths[i]});
  }
  return submission;
}

Submission write_raw(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                     std::span<const std::uint64_t> remote_offsets,
                     std::span<const std::uint64_t> lengths, RawMemory source,
                     std::span<const std::uint64_t> offsets, std::int64_t deadline_ms,
                     bool checksum) {
  check_raw(remote_offsets, lengths, source, offsets, endpoint.options().frame_payload_bytes_max);
  Submission submission = raw(endpoint, peer, wire::Type::kWriteRaw, region, remote_offsets,
                              lengths, deadline_ms, checksum);
  submission.pieces.reserve(lengths.size());
  for (std::uint32_t i = 0; i < lengths.size(); i++) {
    submission.pieces.push_back({source.memory + offsets[i], lengths[i], i});
  }
  return submission;
}

Submission fence(Endpoint& endpoint, const ClientConnection& old, std::int64_t deadline_ms) {
  Submission submission;
  submission.op = endpoint.make_op(wire::Type::kFence, 0, deadline_ms);
  submission.target = old.nonce();
  return submission;
}

Submission notify_peer(Endpoint& endpoint, std::span<const std::uint8_t> bytes,
                       std::int64_t deadline_ms) {
  if (bytes.size() > Inbox::kBytesMax) {
    throw std::invalid_argument("a notification has at most " + std::to_string(Inbox::kBytesMax) +
                                " bytes, not " + std::to_string(bytes.size()));
  }
  Submission submission;
  submission.op = endpoint.make_op(wire::Type::kNotify, 1, deadline_ms);
  submission.meta.assign(bytes.begin(), bytes.end());
  return submission;
}

Submission share_region(Endpoint& endpoint, const ClientConnection& peer, std::uint64_t region,
                        std::int64_t deadline_ms) {
  Submission submission;
  submission.op = endpoint.make_op(wire::Type::kShareRegion, 1, deadline_ms);
  submission.target = wire::region_target(region, peer.peer_epoch());
  return submission;
}

}  // namespace moonpool
