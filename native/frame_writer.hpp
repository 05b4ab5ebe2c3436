// Sends one frame: header and meta, the payload gathered straight from memory, and the trailer, in
// as few sendmsg calls as the socket allows. Used under the owner's lock, by one thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "frame_reader.hpp"

namespace moonpool {

struct OutFrame {
  std::vector<std::uint8_t> head;   // header, meta, padding
  std::vector<Piece> pieces;        // memory is only read
  bool checksum = false;            // compute `crcs` by block just before the bytes leave
  std::vector<std::uint32_t> crcs;  // by block, sized by whoever sets `checksum`
  // Gives a piece its memory just before it leaves. True: where it lies, so that the next one may
  // be given its own beside it; else it has to leave first, since the same memory may serve them
  // all. Not together with `checksum`.
  std::function<bool(OutFrame&, std::size_t)> pack;
  // Fills `trailer` when all CRCs are known and before the last payload bytes leave.
  std::function<void(OutFrame&)> finish;
  std::vector<std::uint8_t> trailer;
  int shared_fd = -1;  // travels with the first byte (UNIX sockets)

  bool begun() const { return sent_ > 0; }
  // The payload not yet handed to the kernel, for whoever must take its memory away (by nulling
  // it).
  void forget_memory(const std::function<bool(const Piece&)>& which);

 private:
  friend class FrameWriter;
  std::uint64_t sent_ = 0;
  std::size_t head_sent_ = 0;
  std::size_t piece_ = 0;  // first piece not wholly sent
  std::uint64_t piece_sent_ = 0;
  std::size_t packed_ = 0;        // pieces that were given their memory
  bool in_place_ = false;         // the last of them
  std::size_t summed_piece_ = 0;  // first piece whose CRC is not complete
  std::uint64_t summed_ = 0;
  bool finished_ = false;
  std::size_t trailer_sent_ = 0;
};

class FrameWriter {
 public:
  enum class Result { kDone, kTurn, kBlocked, kBroken };

  explicit FrameWriter(std::size_t piece_bytes) : piece_bytes_(piece_bytes) {}
  // Sends until the frame has left, the socket is full, or `budget` bytes are used up.
  Result send(int fd, OutFrame& frame, std::size_t* budget) const;

 private:
  void checksum_ahead(OutFrame& frame) const;
  void pack_ahead(OutFrame& frame) const;
  const std::size_t piece_bytes_;
};

// Starts a frame: the signed header, its meta, and padding before a payload.
void set_head(OutFrame& frame, wire::Header header, const void* meta, std::size_t meta_bytes);

}  // namespace moonpool
