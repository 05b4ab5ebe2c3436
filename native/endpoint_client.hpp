// A connection this endpoint opened: ops are submitted from any thread, answers are taken by the
// I/O thread or by a thread that waits for one (reader_role.hpp). A request is sent by its
// submitter when the queue is empty, else by the I/O thread.
//
//   guarded by       what
//   receive_mutex_   the incoming frame, and ending ops: none ends while its memory is written to
//   send_mutex_      the outgoing queue, writing to the socket, `dead_`
//   pending_mutex_   the ops without an answer
//   the role's own   who sleeps on the socket
//
// Taken in this order where several are. Deadlines, cancels and ends come from the I/O thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cpu_share.hpp"
#include "endpoint_options.hpp"
#include "frame_reader.hpp"
#include "frame_writer.hpp"
#include "hello.hpp"
#include "loop.hpp"
#include "op.hpp"
#include "reader_role.hpp"

namespace moonpool {

// A request about to be submitted: the op, and what the frame carries.
struct Submission {
  std::shared_ptr<Op> op;
  std::uint16_t flags = 0;
  wire::Id16 target{};
  std::uint64_t term = 0;
  std::vector<std::uint8_t> meta;
  std::vector<Piece> pieces;  // payload, memory is only read

  std::uint64_t nbytes() const;  // of request and answer
  // Request and answer fit the sockets' buffers: nothing is held up while nobody reads.
  bool small() const;
};

class ClientConnection : public Source, public OpDriver, private FrameSink {
 public:
  ClientConnection(Loop& loop, const EndpointOptions& options, EndpointCounters& counters,
                   Descriptor socket, std::string address, Welcome welcome);

  // Any thread. `submit` always ends the op some day; one that cannot be taken is FAILED at once.
  // For a caller that will wait at once nobody needs to be `watched` for the answer meanwhile: it
  // would wake the I/O thread for nothing. One that changes its mind calls `watch`.
  void submit(Submission submission, bool watched = true);
  void watch() { role_.watch(); }
  void cancel(const std::shared_ptr<Op>& op);
  // Reads the socket on behalf of all, unless another thread does.
  void drive(Op& op, std::int64_t until_ns) override;
  bool alive() const { return !dead_flag_.load(std::memory_order_acquire); }
  const std::string& address() const { return address_; }
  bool is_unix() const { return address_.rfind("unix:", 0) == 0; }
  std::uint64_t peer_epoch() const { return welcome_.peer_epoch; }
  const wire::Id16& nonce() const { return welcome_.nonce; }
  Directory directory() const;
  void set_directory(Directory directory);

  int fd() const override { return socket_.get(); }
  bool on_event(std::uint32_t events) override;
  std::int64_t on_timer(std::int64_t now_ns) override;
  void on_removed() override;

 private:
  struct Outgoing {
    std::shared_ptr<Op> op;
    OutFrame frame;
  };

  bool expects(Expected* expected) override;
  bool on_header(const wire::Header& header, std::size_t* trailer_bytes) override;
  bool on_meta(const wire::Header& header, std::span<const std::uint8_t> meta,
               std::vector<Piece>* pieces, bool* checksum) override;
  bool on_frame(const wire::Header& header, std::span<const std::uint8_t> trailer) override;

  // Whether the op that is about to leave, or to be waited for, is one of a run (cpu_share.hpp).
  bool note_sent(const Submission& submission);
  void note_wait(const Op& op);
  void flush_locked();
  bool receive_locked();
  // Ends an op that has no answer; false when that costs the connection (half a request has left).
  bool end(const std::shared_ptr<Op>& op, OpState state, Status status, const std::string& error);
  void finish(Op& op, OpState state, Status status, const std::string& error);

  Loop& loop_;
  const EndpointOptions& options_;
  EndpointCounters& counters_;
  Descriptor socket_;
  const bool shares_cpu_;
  const std::string address_;
  mutable std::mutex directory_mutex_;
  Welcome welcome_;

  std::mutex send_mutex_;
  FrameWriter writer_;
  std::deque<Outgoing> queue_;
  bool dead_ = false;
  std::atomic<bool> dead_flag_{false};

  std::mutex pending_mutex_;
  std::map<std::uint64_t, std::shared_ptr<Op>> pending_;
  WaitStreak waits_;
  std::uint64_t newest_id_ = 0;

  ReaderRole role_;
  std::mutex receive_mutex_;
  FrameReader reader_;
  std::shared_ptr<Op> current_;  // whose answer is coming in; null when it was given up
  std::vector<std::uint8_t> body_;
  bool ended_ = false;  // nothing more is read: the peer has closed, or broken the protocol

  std::string close_reason_ = "the connection was closed";
};

}  // namespace moonpool
