#include "frame_writer.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "prefetch.hpp"

namespace moonpool {
namespace {

constexpr std::size_t kIovMax = 512;
constexpr std::size_t kZeroBytes = 64 << 10;
constexpr std::uint64_t kBlockBytes = 4 << 10;  // asked for ahead of small pieces

std::uint8_t* zeros() {
  alignas(64) static std::array<std::uint8_t, kZeroBytes> bytes{};
  return bytes.data();
}

ssize_t send_parts(int fd, iovec* parts, std::size_t count, int shared_fd) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (shared_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &shared_fd, sizeof(int));
  }
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

void set_head(OutFrame& frame, wire::Header header, const void* meta, std::size_t meta_bytes) {
  std::size_t size = sizeof(header) + meta_bytes;
  if (header.payload_bytes > 0) {
    header.padding = static_cast<std::uint32_t>(-size % wire::kAlignment);
  }
  wire::sign(header, meta, meta_bytes);
  frame.head.resize(size + header.padding);
  std::memcpy(frame.head.data(), &header, sizeof(header));
  if (meta_bytes > 0) std::memcpy(frame.head.data() + sizeof(header), meta, meta_bytes);
}

void OutFrame::forget_memory(const std::function<bool(const Piece&)>& which) {
  for (std::size_t i = piece_; i < pieces.size(); i++) {
    if (which(pieces[i])) pieces[i].memory = nullptr;
  }
  // A trailer made for the bytes that were to leave says nothing of those that do.
  if (trailer_sent_ == 0) finished_ = false;
}

// Brings the CRC cursor one cache-sized piece ahead of the send cursor; `crcs` has its size
// already.
void FrameWriter::checksum_ahead(OutFrame& frame) const {
  if (frame.summed_piece_ > frame.piece_ ||
      (frame.summed_piece_ == frame.piece_ && frame.summed_ > frame.piece_sent_)) {
    return;  // some bytes are summed and not yet sent
  }
  std::size_t left = piece_bytes_;
  while (left > 0 && frame.summed_piece_ < frame.pieces.size()) {
    const Piece& piece = frame.pieces[frame.summed_piece_];
    std::uint64_t n = std::min<std::uint64_t>(left, piece.size - frame.summed_);
    if (piece.memory) {
      // Small pieces lie apart: where the next one begins is nothing that the CPU foresees.
      if (n <= kBlockBytes && frame.summed_piece_ + 1 < frame.pieces.size()) {
        const Piece& next = frame.pieces[frame.summed_piece_ + 1];
        if (next.memory) prefetch_block(next.memory, std::min(next.size, kBlockBytes));
      }
      std::uint32_t& crc = frame.crcs[piece.block];
      crc = crc32c(piece.memory + frame.summed_, n, crc);
    }
    left -= n;
    frame.summed_ += n;
    if (frame.summed_ == piece.size) {
      frame.summed_piece_++;
      frame.summed_ = 0;
    }
  }
}

// Pieces that lie apart leave together, up to a cache-sized one: each call of the system wakes the
// other end.
void FrameWriter::pack_ahead(OutFrame& frame) const {
  std::uint64_t ready = 0;
  for (std::size_t i = frame.piece_; i < frame.packed_; i++) ready += frame.pieces[i].size;
  while (frame.packed_ < frame.pieces.size() &&
         (frame.packed_ == frame.piece_ || (frame.in_place_ && ready < piece_bytes_))) {
    ready += frame.pieces[frame.packed_].size;
    frame.in_place_ = frame.pack(frame, frame.packed_);
    frame.packed_++;
  }
}

FrameWriter::Result FrameWriter::send(int fd, OutFrame& frame, std::size_t* budget) const {
  while (true) {
    iovec parts[kIovMax];
    std::size_t count = 0;
    std::size_t head = frame.head.size() - frame.head_sent_;
    if (head > 0) parts[count++] = {frame.head.data() + frame.head_sent_, head};

    std::size_t piece_end = frame.pieces.size();
    std::uint64_t last_bytes = 0;  // of the piece at `piece_end`, when it may leave in part
    if (frame.checksum && frame.piece_ < frame.pieces.size()) {
      checksum_ahead(frame);
      piece_end = frame.summed_piece_;
      last_bytes = frame.summed_;
    }
    if (frame.pack) {
      pack_ahead(frame);
      piece_end = frame.packed_;
    }
    std::uint64_t payload = 0;
    std::size_t at = frame.piece_;
    std::uint64_t offset = frame.piece_sent_;
    while (count < kIovMax - 1 && payload < *budget) {
      std::uint64_t end = at < piece_end ? frame.pieces[at].size : at == piece_end ? last_bytes : 0;
      if (end <= offset) break;
      const Piece& piece = frame.pieces[at];
      std::uint64_t n = std::min<std::uint64_t>(end - offset, *budget - payload);
      if (!piece.memory) n = std::min<std::uint64_t>(n, kZeroBytes);
      parts[count++] = {piece.memory ? piece.memory + offset : zeros(), n};
      payload += n;
      offset += n;
      if (offset == piece.size) {
        at++;
        offset = 0;
      }
    }
    bool to_end = at == frame.pieces.size();
    if (to_end && !frame.finished_) {
      if (frame.finish) frame.finish(frame);
      frame.finished_ = true;
    }
    if (to_end && frame.trailer_sent_ < frame.trailer.size()) {
      parts[count++] = {frame.trailer.data() + frame.trailer_sent_,
                        frame.trailer.size() - frame.trailer_sent_};
    }
    if (count == 0) return to_end ? Result::kDone : Result::kTurn;

    ssize_t sent = send_parts(fd, parts, count, frame.sent_ == 0 ? frame.shared_fd : -1);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Result::kBlocked : Result::kBroken;
    }
    auto left = static_cast<std::uint64_t>(sent);
    frame.sent_ += left;
    *budget -= std::min<std::size_t>(*budget, left);
    std::uint64_t from_head = std::min<std::uint64_t>(left, head);
    frame.head_sent_ += from_head;
    left -= from_head;
    while (left > 0 && frame.piece_ < frame.pieces.size()) {
      std::uint64_t n = std::min(left, frame.pieces[frame.piece_].size - frame.piece_sent_);
      left -= n;
      frame.piece_sent_ += n;
      if (frame.piece_sent_ == frame.pieces[frame.piece_].size) {
        frame.piece_++;
        frame.piece_sent_ = 0;
      }
    }
    frame.trailer_sent_ += left;
    if (frame.head_sent_ == frame.head.size() && frame.piece_ == frame.pieces.size() &&
        frame.finished_ && frame.trailer_sent_ == frame.trailer.size()) {
      return Result::kDone;
    }
    if (*budget == 0) return Result::kTurn;
  }
}

}  // namespace moonpool
