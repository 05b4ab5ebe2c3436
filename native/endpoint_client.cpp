#include "endpoint_client.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace moonpool {
namespace {
constexpr std::size_t kStagingBytes = 4 << 10;
}  // namespace

ClientConnection::ClientConnection(Loop& loop, const EndpointOptions& options,
                                   EndpointCounters& counters, Descriptor socket,
                                   std::string address, Welcome welcome)
    : loop_(loop),
      options_(options),
      counters_(counters),
      socket_(std::move(socket)),
      shares_cpu_(options.share_cpu && same_host(socket_.get())),
      address_(std::move(address)),
      welcome_(std::move(welcome)),
      writer_(options.piece_bytes),
      role_(loop, *this),
      reader_(*this, kStagingBytes, options.piece_bytes) {
  if (is_unix()) reader_.accept_fds();
}

Directory ClientConnection::directory() const {
  std::lock_guard lock(directory_mutex_);
  return welcome_.directory;
}

void ClientConnection::set_directory(Directory directory) {
  std::lock_guard lock(directory_mutex_);
  welcome_.directory = std::move(directory);
}

// ---- sending ----

void ClientConnection::submit(Submission submission, bool watched) {
  bool shared = note_sent(submission);
  std::shared_ptr<Op> op = std::move(submission.op);
  op->shares_cpu = shared;
  op->driver = std::static_pointer_cast<ClientConnection>(shared_from_this());
  count(counters_.ops_submitted);
  wire::Header header;
  header.type = static_cast<std::uint8_t>(op->type);
  header.flags = submission.flags | (op->shares_cpu ? wire::kFlagWaited : 0);
  header.request_id = op->id;
  header.count = op->count;
  header.deadline_left_ms = static_cast<std::uint32_t>(left_ms(op->deadline_ns));
  header.target = submission.target;
  header.term = submission.term;

  Outgoing out{op, {}};
  std::erase_if(submission.pieces, [](const Piece& piece) { return piece.size == 0; });
  out.frame.pieces = std::move(submission.pieces);
  for (const Piece& piece : out.frame.pieces) header.payload_bytes += piece.size;
  if (wire::has_request_payload(op->type)) {
    out.frame.checksum = submission.flags & wire::kFlagChecksum;
    out.frame.crcs.assign(op->count, 0);
    out.frame.finish = [](OutFrame& frame) {
      std::size_t size = frame.crcs.size() * 4;
      frame.trailer.resize(size + 4);
      if (size > 0) std::memcpy(frame.trailer.data(), frame.crcs.data(), size);
      std::uint32_t crc = crc32c(frame.trailer.data(), size);
      std::memcpy(frame.trailer.data() + size, &crc, 4);
    };
  }
  set_head(out.frame, header, submission.meta.data(), submission.meta.size());

  std::unique_lock lock(send_mutex_);
  if (dead_) {
    std::string reason = close_reason_;
    lock.unlock();
    return finish(*op, OpState::kFailed, Status::kUnreachable, address_ + ": " + reason);
  }
  {
    std::unique_lock pending_lock(pending_mutex_);
    if (pending_.size() >= options_.ops_max) {
      pending_lock.unlock();
      lock.unlock();
      count(counters_.ops_over_limit);
      return finish(*op, OpState::kFailed, Status::kBusy,
                    address_ + ": ops_max = " + std::to_string(options_.ops_max) +
                        " ops are in flight on this connection; wait for some");
    }
    pending_.emplace(op->id, op);
    newest_id_ = std::max(newest_id_, op->id);
  }
  role_.expect();
  queue_.push_back(std::move(out));
  if (queue_.size() == 1) flush_locked();
  if (watched) role_.watch();  // after sending: the peer works meanwhile
  lock.unlock();
  loop_.note_deadline(op->deadline_ns);
}

bool ClientConnection::note_sent(const Submission& submission) {
  if (!shares_cpu_) return false;
  // More does not fit the socket, and then both ends work at a time.
  bool small = submission.nbytes() <= kSameHostSendBytes;
  std::lock_guard lock(pending_mutex_);
  return waits_.sent(small && pending_.empty(), monotonic_ns());
}

void ClientConnection::note_wait(const Op& op) {
  if (!shares_cpu_) return;
  std::lock_guard lock(pending_mutex_);
  bool alone = pending_.size() == 1 && pending_.begin()->first == op.id;
  waits_.waited(alone, monotonic_ns());
}

// One bounded turn of sending.
void ClientConnection::flush_locked() {
  std::size_t budget = options_.turn_bytes;
  while (!queue_.empty()) {
    Outgoing& out = queue_.front();
    out.op->set_posted();
    std::size_t before = budget;
    auto result = writer_.send(socket_.get(), out.frame, &budget);
    count(counters_.bytes_out, before - budget);
    if (result == FrameWriter::Result::kBroken) {
      // Wakes the I/O thread, which removes the connection and ends its ops.
      ::shutdown(socket_.get(), SHUT_RDWR);
      return role_.want_write(false);
    }
    if (result != FrameWriter::Result::kDone) return role_.want_write(true);
    out.op->sent = true;
    queue_.pop_front();
  }
  role_.want_write(false);
}

// ---- receiving ----

bool ClientConnection::on_event(std::uint32_t events) {
  role_.on_event(events);
  if (events & EPOLLOUT) {
    std::lock_guard lock(send_mutex_);
    if (!dead_) flush_locked();
  }
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
    std::lock_guard lock(receive_mutex_);
    if (!role_.led() && !receive_locked()) return false;
  }
  role_.watch();
  return true;
}

void ClientConnection::drive(Op& op, std::int64_t until_ns) {
  note_wait(op);
  if (!role_.enter()) return;
  // The I/O thread ends what is due; only then does this thread's sleep have to end, too.
  std::int64_t sleep_ns = std::min(until_ns, op.deadline_ns);
  bool intact = true;
  {
    CpuStay stay;
    std::unique_lock lock(receive_mutex_);
    // To look costs less than to sleep, and on one CPU the answer is here before the asker is back.
    intact = !ended_ && (op.terminal() || role_.gone() || receive_locked());
    if (op.shares_cpu && intact && !op.terminal() && stay.begin()) {
      count(counters_.waits_on_shared_cpu);
    }
    // Its op may end only after the connection was removed, for which it must not sleep on.
    while (intact && !op.terminal() && !role_.gone() && monotonic_ns() < sleep_ns) {
      lock.unlock();
      bool readable = role_.sleep(sleep_ns);
      lock.lock();
      intact = !ended_ && (!readable || op.terminal() || receive_locked());
    }
  }
  role_.leave();
  if (intact) return;
  auto self = std::static_pointer_cast<ClientConnection>(shared_from_this());
  loop_.post([self] { self->loop_.remove(self->token); });
}

// One bounded turn; false once the stream has ended.
bool ClientConnection::receive_locked() {
  if (ended_) return false;
  std::uint64_t before = reader_.bytes();
  auto result = reader_.pump(socket_.get(), options_.turn_bytes);
  count(counters_.bytes_in, reader_.bytes() - before);
  if (result == FrameReader::Result::kTurn || result == FrameReader::Result::kBlocked) return true;
  ended_ = true;
  bool broken = result == FrameReader::Result::kBroken;
  if (broken) count(counters_.protocol_errors);
  std::lock_guard lock(send_mutex_);
  close_reason_ =
      broken ? "the peer sent a frame that breaks the protocol" : "the peer closed the connection";
  return false;
}

// The oldest request is answered first. Only raw reads say beforehand how long an answer is.
bool ClientConnection::expects(Expected* expected) {
  std::lock_guard lock(pending_mutex_);
  if (pending_.empty()) return false;
  const Op& op = *pending_.begin()->second;
  if (op.type != wire::Type::kReadRaw || op.state() != OpState::kPosted) return false;
  *expected = {op.id, op.count, op.count * 8, 0};
  for (const Op::Room& room : op.rooms) expected->payload_bytes += room.size;
  return true;
}

bool ClientConnection::on_header(const wire::Header& header, std::size_t* trailer_bytes) {
  if (!(header.type & wire::kReplyBit) || header.count > options_.frame_blocks_max ||
      header.meta_bytes > options_.frame_meta_bytes_max ||
      header.payload_bytes > options_.frame_payload_bytes_max) {
    return false;
  }
  current_.reset();
  {
    std::lock_guard lock(pending_mutex_);
    if (header.request_id > newest_id_) return false;
    auto found = pending_.find(header.request_id);
    if (found != pending_.end()) current_ = found->second;
  }
  if (current_) {
    auto type = wire::Type(header.type & ~wire::kReplyBit);
    if (type != current_->type || header.count != current_->count) return false;
    if (wire::has_request_payload(type)) {
      // An answer before the whole request would end the op while its memory is being sent.
      std::lock_guard lock(send_mutex_);
      if (!current_->sent) return false;
    }
  }
  *trailer_bytes = wire::reply_trailer_bytes(header);
  return true;
}

bool ClientConnection::on_meta(const wire::Header& header, std::span<const std::uint8_t> meta,
                               std::vector<Piece>* pieces, bool* checksum) {
  if (!current_) {
    pieces->push_back({nullptr, header.payload_bytes, 0});
    return true;
  }
  if (!wire::has_reply_payload(current_->type)) {
    body_.assign(meta.begin(), meta.end());
    return true;
  }
  if (meta.size() != std::size_t{header.count} * 8) return false;
  for (std::uint32_t i = 0; i < header.count; i++) {
    auto length = wire::load<std::uint64_t>(meta.data() + std::size_t{i} * 8);
    const Op::Room& room = current_->rooms[i];
    if (length > room.size) return false;
    pieces->push_back({room.memory, length, i});
  }
  *checksum = current_->checksum;
  return true;
}

bool ClientConnection::on_frame(const wire::Header& header, std::span<const std::uint8_t> trailer) {
  std::size_t size = trailer.size() - sizeof(wire::TrailerEnd);
  auto end = wire::load<wire::TrailerEnd>(trailer.data() + size);
  if (end.magic != wire::kMagic || end.crc != crc32c(trailer.data(), size)) return false;
  count(counters_.replies_received);
  role_.answered();
  std::shared_ptr<Op> op = std::move(current_);
  current_.reset();
  if (!op) return true;
  OpResult result;
  result.status.reserve(header.count);
  result.sizes.reserve(header.count);
  result.crcs.reserve(header.count);
  result.slots.reserve(header.count);
  result.generations.reserve(header.count);
  const auto& crcs = reader_.crcs();
  for (std::uint32_t i = 0; i < header.count; i++) {
    auto record = wire::load<wire::ReplyRecord>(trailer.data() + i * sizeof(wire::ReplyRecord));
    if (!crcs.empty() && record.status == static_cast<std::uint8_t>(Status::kOk) &&
        crcs[i] != record.crc) {
      record.status = static_cast<std::uint8_t>(Status::kCorrupt);
    }
    result.status.push_back(record.status);
    result.sizes.push_back(record.size);
    result.crcs.push_back(record.crc);
    result.slots.push_back(record.slot);
    result.generations.push_back(record.generation);
  }
  result.body = std::exchange(body_, {});
  op->shared_fd = reader_.take_fd();
  {
    std::lock_guard lock(pending_mutex_);
    pending_.erase(op->id);
  }
  count(counters_.ops_done);
  op->finish(std::move(result));
  return true;
}

// ---- ends ----

// Counted before the caller can see the end.
void ClientConnection::finish(Op& op, OpState state, Status status, const std::string& error) {
  if (op.terminal()) return;
  count(state == OpState::kCancelled ? counters_.ops_cancelled
        : state == OpState::kExpired ? counters_.ops_expired
                                     : counters_.ops_failed);
  op.finish(state, status, error);
}

void ClientConnection::cancel(const std::shared_ptr<Op>& op) {
  auto self = std::static_pointer_cast<ClientConnection>(shared_from_this());
  loop_.post([self, op] {
    if (op->terminal()) return;
    if (!self->end(op, OpState::kCancelled, Status::kCancelled, "cancelled by the caller")) {
      self->loop_.remove(self->token);
    }
  });
}

bool ClientConnection::end(const std::shared_ptr<Op>& op, OpState state, Status status,
                           const std::string& error) {
  std::lock_guard receive_lock(receive_mutex_);
  if (op->terminal()) return true;  // its answer came first
  bool half_sent = false;
  {
    std::lock_guard lock(send_mutex_);
    auto found = std::find_if(queue_.begin(), queue_.end(),
                              [&](const Outgoing& out) { return out.op == op; });
    if (found != queue_.end()) {
      half_sent = found->frame.begun();
      queue_.erase(found);
      if (half_sent) {
        dead_ = true;  // the stream is of no use any more: nothing may follow half a frame
        close_reason_ = "an op ended while its request was half sent";
      } else {
        role_.answered();
      }
    }
  }
  if (current_ == op) {
    for (Piece& piece : reader_.remaining()) piece.memory = nullptr;
    current_.reset();
  }
  {
    std::lock_guard lock(pending_mutex_);
    pending_.erase(op->id);
  }
  finish(*op, state, status, error);
  role_.kick();
  return !half_sent;
}

std::int64_t ClientConnection::on_timer(std::int64_t now_ns) {
  std::vector<std::shared_ptr<Op>> due;
  std::int64_t next = kNoDeadline;
  {
    std::lock_guard lock(pending_mutex_);
    for (const auto& [id, op] : pending_) {
      if (op->deadline_ns <= now_ns) {
        due.push_back(op);
      } else {
        next = std::min(next, op->deadline_ns);
      }
    }
  }
  bool intact = true;
  if (!due.empty()) {
    // What nobody has waited for yet may have been answered long ago: it lies in the socket.
    std::lock_guard lock(receive_mutex_);
    intact = role_.led() || receive_locked();
  }
  for (const auto& op : due) {
    intact = end(op, OpState::kExpired, Status::kExpired,
                 address_ + ": the deadline passed without an answer") &&
             intact;
  }
  return intact ? next : kRemove;
}

void ClientConnection::on_removed() {
  role_.retire();  // from here on no other thread sleeps on the socket or reads it
  std::string reason;
  {
    std::lock_guard lock(send_mutex_);
    dead_ = true;
    dead_flag_.store(true, std::memory_order_release);
    queue_.clear();
    reason = close_reason_;
    socket_.reset();
  }
  {
    std::lock_guard lock(receive_mutex_);
    current_.reset();
  }
  std::map<std::uint64_t, std::shared_ptr<Op>> left;
  {
    std::lock_guard lock(pending_mutex_);
    left.swap(pending_);
  }
  for (const auto& [id, op] : left) {
    finish(*op, OpState::kFailed, Status::kUnreachable, address_ + ": " + reason);
  }
}

}  // namespace moonpool
