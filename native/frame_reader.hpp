// Takes frames off a socket: header and meta through a small staging buffer, the payload by scatter
// straight into its destination, with the CRC-32C of each block computed while the bytes are in
// cache. Used by one thread at a time.
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "frame.hpp"
#include "socket_io.hpp"

namespace moonpool {

// A run of payload bytes. Null memory means: received into a sink, sent as zeros.
struct Piece {
  std::uint8_t* memory = nullptr;
  std::uint64_t size = 0;
  std::uint32_t block = 0;
};

// A reply that is foreseen.
struct Expected {
  std::uint64_t request_id = 0;
  std::uint32_t count = 0;
  std::uint32_t meta_bytes = 0;
  std::uint64_t payload_bytes = 0;
};

// What a connection does with the frames it receives. Each `bool` is false for a frame that breaks
// the protocol; the connection is closed then.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Checks every length against its limit before anything is allocated.
  virtual bool on_header(const wire::Header& header, std::size_t* trailer_bytes) = 0;
  // Lays out where the payload goes.
  virtual bool on_meta(const wire::Header& header, std::span<const std::uint8_t> meta,
                       std::vector<Piece>* pieces, bool* checksum) = 0;
  // Before each piece of payload: a chance to send the rest to the sink.
  virtual void on_payload() {}
  virtual bool on_frame(const wire::Header& header, std::span<const std::uint8_t> trailer) = 0;
  // Before a frame of which nothing is here yet: which one comes most likely, so that its head can
  // be received by itself, and the rest into place. False when anything may come.
  virtual bool expects(Expected*) { return false; }
};

class FrameReader {
 public:
  enum class Result { kTurn, kBlocked, kClosed, kBroken };
  enum class Fault { kNone, kMagic, kVersion, kDamaged, kRefused };

  FrameReader(FrameSink& sink, std::size_t staging_bytes, std::size_t piece_bytes);

  // Receives until the socket is empty or `turn_bytes` have been taken.
  Result pump(int fd, std::size_t turn_bytes);

  // Lets descriptors in (UNIX sockets); the last one received waits for take_fd().
  void accept_fds() { accept_fds_ = true; }
  Descriptor take_fd() { return std::move(received_fd_); }

  // While paused no new frame is begun; bytes stay in the socket.
  void pause(bool paused) { paused_ = paused; }
  bool paused() const { return paused_; }
  bool in_frame() const { return phase_ != Phase::kHeader || got_ > 0; }

  // The payload still to come, for whoever must take its destination away (by nulling memory).
  std::span<Piece> remaining() { return std::span(pieces_).subspan(piece_); }
  // CRC-32C by block of the bytes received so far.
  const std::vector<std::uint32_t>& crcs() const { return crcs_; }
  Fault fault() const { return fault_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  enum class Phase { kHeader, kMeta, kPayload, kTrailer };

  bool consume();
  bool begin_frame();
  bool begin_payload();
  bool fill(std::uint8_t* to, std::size_t size);
  void advance(std::uint64_t size);
  void take_staged_payload();
  std::ptrdiff_t receive(int fd);
  bool foresee();
  std::ptrdiff_t receive_foreseen(int fd);
  bool is_foreseen() const;
  void keep_fds(msghdr& message);
  bool fail(Fault fault);

  FrameSink& sink_;
  const std::size_t piece_bytes_;
  std::vector<std::uint8_t> staging_;
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
  std::vector<std::uint8_t> waste_;  // where null pieces go, made when first needed

  Phase phase_ = Phase::kHeader;
  std::size_t got_ = 0;  // bytes of the current header, meta or trailer
  wire::Header header_;
  std::vector<std::uint8_t> meta_;  // and the padding
  std::vector<std::uint8_t> trailer_;
  std::vector<Piece> pieces_;
  std::size_t piece_ = 0;
  std::uint64_t piece_got_ = 0;
  std::uint64_t payload_left_ = 0;
  bool checksum_ = false;
  std::vector<std::uint32_t> crcs_;
  bool short_ = false;  // the last recvmsg left room
  Expected expected_;
  bool sound_ = true;  // what the last recvmsg brought keeps to the protocol
  bool paused_ = false;
  bool accept_fds_ = false;
  Descriptor received_fd_;
  Fault fault_ = Fault::kNone;
  std::uint64_t bytes_ = 0;
};

}  // namespace moonpool
