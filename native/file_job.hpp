// One submitted list of blocks between memory and a file, cut into pieces that threads or the
// kernel carry out side by side.
//
//   QUEUED -> POSTED -> one of DONE | FAILED | CANCELLED | EXPIRED
//
// A piece that was handed out may touch the caller's memory until it is told finished; the job ends
// when none is out any more, so an ended job is quiet. Cancelling and the deadline stop handing
// out.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "block_copy.hpp"
#include "op.hpp"
#include "status.hpp"

namespace moonpool {

struct FileRequest {
  int fd = -1;  // open until the job has ended
  bool write = false;
  Range memory;
  std::span<const std::uint64_t> memory_offsets;  // three lists of equal length n
  std::span<const std::uint64_t> file_offsets;
  std::span<const std::uint64_t> lengths;
  std::int64_t deadline_ns = 0;  // CLOCK_MONOTONIC
  bool checksum = true;
};

class FileJob {
 public:
  struct Piece {
    std::byte* memory;
    std::uint64_t offset;  // in the file
    std::size_t size;
    std::size_t block;  // the first one it touches
  };

  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

  // Neighbours in memory and file share a piece. Throws std::out_of_range for a block outside the
  // memory, std::invalid_argument for uneven lists or offsets beyond 2^63.
  FileJob(std::uint64_t id, const FileRequest& request);

  // ---- for who carries it out ----

  // The next piece to move; nothing when all are out, or the job was cancelled, or is too late.
  std::optional<Piece> next(std::int64_t now_ns);
  // `moved` bytes of a piece that next() gave, or -errno; 0 means that the file ends there. True
  // when something is left of it, which next() gives again.
  bool finished(const Piece& piece, std::int64_t moved);
  // Reads what the page cache holds, on the calling thread and without waiting for a disk.
  void take_cached(std::int64_t now_ns);
  // Writes on the calling thread, up to the first piece for which the kernel let it wait: false
  // then. Others go on from there.
  bool write_here();
  // Ends a job of which nothing is out and whose time has passed. True when it has ended.
  bool expire(std::int64_t now_ns);
  // Fails it if nothing was handed out ever.
  void refuse(Status status, const std::string& why);

  // ---- for who asked ----

  void cancel();
  // False when `timeout_ms` pass first.
  bool wait(std::int64_t timeout_ms);
  // The id goes to `completions` when the job has ended, at once if it has.
  void notify(Completions& completions);
  OpState state() const;
  bool terminal() const { return state() >= OpState::kDone; }
  const std::vector<std::uint8_t>& status() const { return status_; }  // these once terminal
  const std::vector<std::uint32_t>& crc() const { return crc_; }       // empty without checksum
  const std::string& error() const { return error_; }

  const std::uint64_t id;
  const int fd;
  const bool write;
  const std::int64_t deadline_ns;
  bool queued = false;  // whether it waits for its turn; of who carries it out

 private:
  struct Block {
    std::byte* memory;
    std::uint64_t offset;
    std::size_t size;
    std::size_t left;
  };

  void cut();
  bool may_end() const { return out_ == 0 && (stopped_ || given_ == pieces_.size()); }
  void end_if_due();
  void end(OpState state);
  static bool shares(const Block& block, const Piece& piece);
  void fail_blocks(const Piece& piece, Status status);
  std::vector<std::size_t> arrive(const Piece& piece);

  std::vector<Block> blocks_;
  std::vector<Piece> pieces_;  // and what comes again, at its end
  std::vector<std::uint8_t> status_;
  std::vector<std::uint32_t> crc_;
  std::string error_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Completions* completions_ = nullptr;
  OpState state_ = OpState::kQueued;
  std::size_t given_ = 0;
  std::size_t out_ = 0;
  bool stopped_ = false;  // hand out no more
  bool cancelled_ = false;
};

}  // namespace moonpool
