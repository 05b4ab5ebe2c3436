#include "frame_reader.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace moonpool {
namespace {
constexpr std::size_t kIovMax = 512;
constexpr std::size_t kWasteBytes = 64 << 10;
}  // namespace

FrameReader::FrameReader(FrameSink& sink, std::size_t staging_bytes, std::size_t piece_bytes)
    : sink_(sink), piece_bytes_(piece_bytes), staging_(staging_bytes) {}

FrameReader::Result FrameReader::pump(int fd, std::size_t turn_bytes) {
  std::size_t taken = 0;
  short_ = false;
  while (true) {
    if (!consume()) return Result::kBroken;
    // Less came than there was room for, and it ends with a frame: nothing is left to ask for.
    if (short_ && !in_frame()) return Result::kBlocked;
    if (paused_ && phase_ == Phase::kHeader) return Result::kBlocked;
    if (taken >= turn_bytes) return Result::kTurn;
    if (phase_ == Phase::kPayload) sink_.on_payload();
    std::ptrdiff_t got = foresee() ? receive_foreseen(fd) : receive(fd);
    if (!sound_) return Result::kBroken;
    if (got == 0) return Result::kClosed;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Result::kBlocked : Result::kClosed;
    }
    taken += static_cast<std::size_t>(got);
    bytes_ += static_cast<std::uint64_t>(got);
  }
}

bool FrameReader::fail(Fault fault) {
  fault_ = fault;
  return false;
}

// Moves staged bytes to `to` until `size` of them are there.
bool FrameReader::fill(std::uint8_t* to, std::size_t size) {
  std::size_t n = std::min(size - got_, staged_end_ - staged_begin_);
  if (n > 0) std::memcpy(to + got_, staging_.data() + staged_begin_, n);
  got_ += n;
  staged_begin_ += n;
  return got_ == size;
}

// Runs the frame's phases over what is staged, until more bytes are needed.
bool FrameReader::consume() {
  while (true) {
    switch (phase_) {
      case Phase::kHeader:
        if (paused_) return true;
        if (!fill(reinterpret_cast<std::uint8_t*>(&header_), sizeof(header_))) return true;
        if (!begin_frame()) return false;
        break;
      case Phase::kMeta:
        if (!fill(meta_.data(), meta_.size())) return true;
        if (!begin_payload()) return false;
        break;
      case Phase::kPayload:
        take_staged_payload();
        if (payload_left_ > 0) return true;
        phase_ = Phase::kTrailer;
        got_ = 0;
        break;
      case Phase::kTrailer:
        if (!fill(trailer_.data(), trailer_.size())) return true;
        phase_ = Phase::kHeader;
        got_ = 0;
        pieces_.clear();
        piece_ = 0;
        if (!sink_.on_frame(header_, trailer_)) return fail(Fault::kRefused);
        break;
    }
  }
}

bool FrameReader::begin_frame() {
  if (header_.magic != wire::kMagic) return fail(Fault::kMagic);
  if (header_.version != wire::kVersion) return fail(Fault::kVersion);
  if (!wire::signature_ok(header_)) return fail(Fault::kDamaged);
  if (header_.padding >= wire::kAlignment) return fail(Fault::kDamaged);
  std::size_t trailer_bytes = 0;
  if (!sink_.on_header(header_, &trailer_bytes)) return fail(Fault::kRefused);
  meta_.resize(std::size_t{header_.meta_bytes} + header_.padding);
  trailer_.resize(trailer_bytes);
  phase_ = Phase::kMeta;
  got_ = 0;
  return true;
}

bool FrameReader::begin_payload() {
  std::span meta = std::span<const std::uint8_t>(meta_).first(header_.meta_bytes);
  if (crc32c(meta.data(), meta.size()) != header_.meta_crc) return fail(Fault::kDamaged);
  pieces_.clear();
  checksum_ = false;
  if (!sink_.on_meta(header_, meta, &pieces_, &checksum_)) return fail(Fault::kRefused);
  std::erase_if(pieces_, [](const Piece& piece) { return piece.size == 0; });
  payload_left_ = 0;
  for (const Piece& piece : pieces_) payload_left_ += piece.size;
  if (payload_left_ != header_.payload_bytes) return fail(Fault::kRefused);
  piece_ = 0;
  piece_got_ = 0;
  crcs_.assign(checksum_ ? header_.count : 0, 0);
  phase_ = Phase::kPayload;
  return true;
}

void FrameReader::take_staged_payload() {
  while (payload_left_ > 0 && staged_begin_ < staged_end_) {
    const Piece& piece = pieces_[piece_];
    std::uint64_t n = std::min<std::uint64_t>(piece.size - piece_got_, staged_end_ - staged_begin_);
    if (piece.memory) {
      std::memcpy(piece.memory + piece_got_, staging_.data() + staged_begin_, n);
    }
    staged_begin_ += n;
    advance(n);
  }
}

// Accounts for `size` payload bytes that have reached their destination.
void FrameReader::advance(std::uint64_t size) {
  payload_left_ -= size;
  while (size > 0) {
    const Piece& piece = pieces_[piece_];
    std::uint64_t n = std::min(size, piece.size - piece_got_);
    if (checksum_ && piece.memory) {
      std::uint32_t& crc = crcs_[piece.block];
      crc = crc32c(piece.memory + piece_got_, n, crc);
    }
    size -= n;
    piece_got_ += n;
    if (piece_got_ == piece.size) {
      piece_++;
      piece_got_ = 0;
    }
  }
}

void FrameReader::keep_fds(msghdr& message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; i++) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      received_fd_ = Descriptor(fd);
    }
  }
}

// One recvmsg: the rest of the current part, and what may follow it, into their places.
std::ptrdiff_t FrameReader::receive(int fd) {
  iovec parts[kIovMax];
  std::size_t count = 0;
  std::uint64_t payload = 0;
  bool to_end = true;  // everything up to the end of the payload is in `parts`
  if (phase_ == Phase::kMeta) {
    parts[count++] = {meta_.data() + got_, meta_.size() - got_};
  } else if (phase_ == Phase::kPayload) {
    std::uint64_t offset = piece_got_;
    std::size_t at = piece_;
    while (at < pieces_.size() && count < kIovMax - 2 && payload < piece_bytes_) {
      const Piece& piece = pieces_[at];
      std::uint64_t n = std::min<std::uint64_t>(piece.size - offset, piece_bytes_ - payload);
      if (piece.memory) {
        parts[count++] = {piece.memory + offset, n};
      } else {
        if (waste_.empty()) waste_.resize(kWasteBytes);
        n = std::min<std::uint64_t>(n, kWasteBytes);
        parts[count++] = {waste_.data(), n};
      }
      payload += n;
      offset += n;
      if (offset == piece.size) {
        at++;
        offset = 0;
      }
    }
    to_end = at == pieces_.size();
  }
  std::size_t tail = 0;
  if (to_end && (phase_ == Phase::kPayload || phase_ == Phase::kTrailer)) {
    std::size_t have = phase_ == Phase::kTrailer ? got_ : 0;
    tail = trailer_.size() - have;
    if (tail > 0) parts[count++] = {trailer_.data() + have, tail};
  }
  if (to_end) parts[count++] = {staging_.data(), staging_.size()};

  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (accept_fds_) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) return got;
  if (accept_fds_) keep_fds(message);

  auto left = static_cast<std::uint64_t>(got);
  std::uint64_t room = 0;
  for (std::size_t i = 0; i < count; i++) room += parts[i].iov_len;
  short_ = left < room;
  staged_begin_ = staged_end_ = 0;
  if (phase_ == Phase::kMeta) {
    std::uint64_t n = std::min<std::uint64_t>(left, meta_.size() - got_);
    got_ += n;
    left -= n;
  }
  if (phase_ == Phase::kPayload) {
    std::uint64_t n = std::min(left, payload);
    advance(n);
    left -= n;
    if (payload_left_ == 0) {
      phase_ = Phase::kTrailer;
      got_ = 0;
    }
  }
  if (phase_ == Phase::kTrailer) {
    std::uint64_t n = std::min<std::uint64_t>(left, tail);
    got_ += n;
    left -= n;
  }
  staged_end_ = left;
  return got;
}

// ---- a frame that is foreseen: its head at once, so that all else is received into place ----

// True with `expected_` filled in. A descriptor may come with any frame of a UNIX socket, so there
// every frame goes the usual way.
bool FrameReader::foresee() {
  if (phase_ != Phase::kHeader || got_ > 0 || accept_fds_) return false;
  return sink_.expects(&expected_) && expected_.payload_bytes > 0 &&
         expected_.payload_bytes <= piece_bytes_;
}

bool FrameReader::is_foreseen() const {
  return header_.request_id == expected_.request_id && header_.count == expected_.count &&
         header_.meta_bytes == expected_.meta_bytes &&
         header_.payload_bytes == expected_.payload_bytes &&
         header_.meta_bytes + header_.padding == meta_.size();
}

// Not a byte more than the head: only when it is here it is known whose memory the payload is for.
std::ptrdiff_t FrameReader::receive_foreseen(int fd) {
  const std::size_t head = sizeof(header_) + expected_.meta_bytes;
  meta_.resize(expected_.meta_bytes + (-head % wire::kAlignment));

  iovec parts[2] = {{&header_, sizeof(header_)}, {meta_.data(), meta_.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) return got;
  short_ = static_cast<std::uint64_t>(got) < sizeof(header_) + meta_.size();
  staged_begin_ = staged_end_ = 0;
  got_ = std::min<std::size_t>(static_cast<std::size_t>(got), sizeof(header_));
  const auto left = static_cast<std::size_t>(got) - got_;
  if (got_ < sizeof(header_)) return got;
  if (!is_foreseen()) {  // it goes the usual way, from the staging buffer
    if (staging_.size() < left) staging_.resize(left);
    std::copy_n(meta_.begin(), left, staging_.begin());
    staged_end_ = left;
    return got;
  }
  sound_ = begin_frame();  // what was received lies where it will look for it
  if (!sound_) return got;
  got_ = left;
  if (got_ == meta_.size()) sound_ = begin_payload();
  return got;
}

}  // namespace moonpool
