#include "endpoint_server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace moonpool {
namespace {

constexpr std::size_t kStagingBytes = 16 << 10;

bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// What a tenant may ask for: regions are the process's own, and a directory names files.
bool of_segments(wire::Type type) {
  return (type >= wire::Type::kReadObjects && type <= wire::Type::kWriteObject) ||
         type == wire::Type::kGatherRows || type == wire::Type::kPing || type == wire::Type::kFence;
}

std::int64_t ms(std::uint32_t value) { return std::int64_t{value} * 1'000'000; }

}  // namespace

ServerConnection::ServerConnection(ServerContext& context, Descriptor socket, bool is_unix,
                                   std::string peer)
    : context_(context),
      socket_(std::move(socket)),
      is_unix_(is_unix),
      shares_cpu_(context.options.share_cpu && same_host(socket_.get())),
      peer_(std::move(peer)),
      claims_(context.options.claims_max),
      reader_(*this, kStagingBytes, context.options.piece_bytes),
      writer_(context.options.piece_bytes),
      hello_deadline_ns_(monotonic_ns() + ms(context.options.hello_ms)),
      events_(EPOLLIN) {
  count(context_.counters.connections_open);
  if (!peer_.empty()) context_.peers[peer_]++;
}

bool ServerConnection::on_event(std::uint32_t events) {
  if (state_ == State::kRefusing) return flush() && drop_input();
  if (events & EPOLLOUT && !flush()) return false;
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !receive()) return false;
  if (!flush()) return false;
  // Room again: frames that wait in the staging buffer raise no event.
  if (state_ == State::kReady && reader_.paused() &&
      replies_.size() < context_.options.replies_max) {
    reader_.pause(false);
    if (!receive() || !flush()) return false;
  }
  update_events();
  return true;
}

bool ServerConnection::receive() {
  std::uint64_t before = reader_.bytes();
  auto result = reader_.pump(socket_.get(), context_.options.turn_bytes);
  count(context_.counters.bytes_in, reader_.bytes() - before);
  if (result == FrameReader::Result::kBroken) {
    if (state_ == State::kHello && reader_.fault() == FrameReader::Fault::kVersion) {
      refuse("this endpoint speaks protocol version " + std::to_string(wire::kVersion) +
             " and no other; use the same Moonpool version on both ends");
      return true;
    }
    if (state_ == State::kRefusing) return true;
    count(context_.counters.protocol_errors);
    return false;
  }
  return result != FrameReader::Result::kClosed;
}

void ServerConnection::update_events() {
  std::uint32_t wanted =
      (reader_.paused() && state_ == State::kReady ? 0u : static_cast<std::uint32_t>(EPOLLIN)) |
      (replies_.empty() ? 0u : static_cast<std::uint32_t>(EPOLLOUT));
  if (wanted == events_) return;
  events_ = wanted;
  context_.loop.set_events(*this, wanted);
}

// ---- requests ----

bool ServerConnection::on_header(const wire::Header& header, std::size_t* trailer_bytes) {
  const EndpointOptions& options = context_.options;
  auto type = wire::Type{header.type};
  if (state_ != State::kReady) {
    auto expected = state_ == State::kHello ? wire::Type::kHello : wire::Type::kProof;
    return type == expected && header.meta_bytes <= sizeof(Mac) && header.payload_bytes == 0 &&
           header.count == 0;
  }
  if (header.count > options.frame_blocks_max || header.meta_bytes > options.frame_meta_bytes_max ||
      header.payload_bytes > options.frame_payload_bytes_max ||
      (header.flags & ~wire::kFlagsKnown) != 0 ||
      (header.payload_bytes > 0 && !wire::has_request_payload(type)) ||
      (type == wire::Type::kFence && header.target == client_.nonce)) {
    return false;
  }
  std::uint32_t left = std::min(header.deadline_left_ms, options.deadline_max_ms);
  if (tenant_ && !of_segments(type)) return false;
  const std::int64_t now_ns = monotonic_ns();
  incoming_ = make_request(context_, claims_, header, now_ns + ms(left));
  if (!incoming_) return false;
  const bool waited = shares_cpu_ && (header.flags & wire::kFlagWaited);
  if (context_.follower.asked(token, waited, socket_.get(), now_ns)) {
    count(context_.counters.cpu_moves);
    context_.loop.note_deadline(context_.follower.due_ns());
  }
  incoming_->tenant = tenant_;
  *trailer_bytes = wire::request_trailer_bytes(header);
  return true;
}

bool ServerConnection::on_meta(const wire::Header&, std::span<const std::uint8_t> meta,
                               std::vector<Piece>* pieces, bool* checksum) {
  if (!incoming_) {
    hello_meta_.assign(meta.begin(), meta.end());
    return true;
  }
  *checksum = wire::has_request_payload(wire::Type{incoming_->header.type});
  if (!incoming_->begin(meta, pieces)) return false;
  if (*checksum) context_.loop.note_deadline(incoming_->deadline_ns);
  return true;
}

void ServerConnection::on_payload() {
  if (incoming_ && !incoming_->released()) incoming_->check(reader_.remaining());
}

bool ServerConnection::on_frame(const wire::Header& header, std::span<const std::uint8_t> trailer) {
  if (!incoming_) {
    return state_ == State::kHello ? take_hello(hello_meta_) : take_proof(hello_meta_);
  }
  std::vector<std::uint32_t> sent;
  if (!trailer.empty()) {
    std::size_t size = trailer.size() - 4;
    if (wire::load<std::uint32_t>(trailer.data() + size) != crc32c(trailer.data(), size)) {
      return false;
    }
    if (header.flags & wire::kFlagChecksum) {
      sent.resize(header.count);
      if (size > 0) std::memcpy(sent.data(), trailer.data(), size);
    }
  }
  incoming_->complete(reader_.crcs(), sent);
  count(context_.counters.requests_served);
  count(context_.counters.blocks_served, header.count);
  replies_.push_back({std::move(incoming_), {}, false});
  if (replies_.size() >= context_.options.replies_max) {
    reader_.pause(true);
    count(context_.counters.reads_paused);
  }
  return true;
}

// ---- hello ----

bool ServerConnection::take_hello(std::span<const std::uint8_t> meta) {
  if (meta.size() != sizeof(wire::Hello)) return false;
  if (is_unix_ && !same_user(socket_.get())) {
    refuse("this socket serves processes of the same user only");
    return true;
  }
  client_ = wire::load<wire::Hello>(meta.data());
  server_ = {context_.epoch, random_id()};
  state_ = State::kProof;
  send_hello(wire::Type::kChallenge, &server_, sizeof(server_));
  return true;
}

// The token that this proof was made with; null for none. All are tried: the time does not tell.
const std::string* ServerConnection::token_of(const std::uint8_t* mac) {
  const std::string* found = nullptr;
  if (same_mac(prove(context_.token, "client", client_, server_), mac)) found = &context_.token;
  for (const TenantToken& one : context_.tenants) {
    if (!same_mac(prove(one.token, "client", client_, server_), mac) || found) continue;
    found = &one.token;
    tenant_ = one.tenant;
  }
  return found;
}

bool ServerConnection::take_proof(std::span<const std::uint8_t> meta) {
  if (meta.size() != sizeof(Mac)) return false;
  const std::string* token = token_of(meta.data());
  if (!token) {
    refuse("wrong token");
    return true;
  }
  state_ = State::kReady;
  Mac mac = prove(*token, "server", client_, server_);
  std::vector<std::uint8_t> welcome(mac.begin(), mac.end());
  auto directory = encode_directory(tenant_ ? Directory{} : context_.directory());
  welcome.insert(welcome.end(), directory.begin(), directory.end());
  send_hello(wire::Type::kWelcome, welcome.data(), welcome.size());
  return true;
}

void ServerConnection::refuse(const std::string& text) {
  count(context_.counters.hellos_refused);
  state_ = State::kRefusing;
  reader_.pause(true);
  send_hello(wire::Type::kRefused, text.data(), text.size());
}

void ServerConnection::send_hello(wire::Type type, const void* meta, std::size_t size) {
  Reply reply;
  reply.frame.head = hello_frame(type, meta, size);
  reply.started = true;
  replies_.push_back(std::move(reply));
}

// After the refusal has left: end our side, and wait (bounded by the hello's time) for the peer's.
bool ServerConnection::drop_input() {
  if (replies_.empty() && !shut_down_) {
    ::shutdown(socket_.get(), SHUT_WR);
    shut_down_ = true;
  }
  char waste[4096];
  ssize_t got = ::recv(socket_.get(), waste, sizeof(waste), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
  update_events();
  return true;
}

// ---- replies ----

bool ServerConnection::flush() {
  std::size_t budget = context_.options.turn_bytes;
  while (!replies_.empty()) {
    Reply& reply = replies_.front();
    if (!reply.started) start(reply);
    std::size_t before = budget;
    auto result = writer_.send(socket_.get(), reply.frame, &budget);
    count(context_.counters.bytes_out, before - budget);
    if (result == FrameWriter::Result::kBroken) return false;
    if (result != FrameWriter::Result::kDone) return true;
    replies_.pop_front();
  }
  return true;
}

// Only now, at the head of the queue, does a read take hold of memory.
void ServerConnection::start(Reply& reply) {
  ServerRequest& request = *reply.request;
  reply.started = true;
  if (!request.released()) {
    if (request.deadline_ns <= monotonic_ns() &&
        wire::has_reply_payload(wire::Type{request.header.type})) {
      request.release(Status::kExpired);
    } else {
      request.answer(reply.frame);
    }
  }
  if (wire::has_reply_payload(wire::Type{request.header.type}) && request.reply_meta.empty()) {
    request.reply_meta.assign(std::size_t{request.header.count} * 8, 0);
  }
  wire::Header header;
  header.type = request.header.type | wire::kReplyBit;
  header.request_id = request.header.request_id;
  header.count = request.header.count;
  std::erase_if(reply.frame.pieces, [](const Piece& piece) { return piece.size == 0; });
  for (const Piece& piece : reply.frame.pieces) header.payload_bytes += piece.size;
  if (reply.frame.checksum) reply.frame.crcs.assign(header.count, 0);
  set_head(reply.frame, header, request.reply_meta.data(), request.reply_meta.size());
  reply.frame.finish = [&request](OutFrame& frame) {
    request.recheck(frame);
    std::size_t size = request.records.size() * sizeof(wire::ReplyRecord);
    wire::TrailerEnd end{.crc = crc32c(request.records.data(), size)};
    frame.trailer.resize(size + sizeof(end));
    if (size > 0) std::memcpy(frame.trailer.data(), request.records.data(), size);
    std::memcpy(frame.trailer.data() + size, &end, sizeof(end));
  };
  if (header.payload_bytes > 0) context_.loop.note_deadline(request.deadline_ns);
}

void ServerConnection::drop_memory(Reply& reply, Status why) {
  reply.request->release(why);
  reply.frame.forget_memory([](const Piece&) { return true; });
}

void ServerConnection::drop_incoming(Status why) {
  incoming_->release(why);
  for (Piece& piece : reader_.remaining()) piece.memory = nullptr;
}

void ServerConnection::withdraw(const std::function<bool(const wire::Header&)>& which, Status why) {
  if (incoming_ && which(incoming_->header)) {
    drop_incoming(why);
  }
  for (Reply& reply : replies_) {
    if (reply.request && which(reply.request->header)) drop_memory(reply, why);
  }
}

// ---- time ----

std::int64_t ServerConnection::on_timer(std::int64_t now_ns) {
  if (state_ != State::kReady) {
    if (now_ns < hello_deadline_ns_) return hello_deadline_ns_;
    if (state_ != State::kRefusing) count(context_.counters.hellos_timed_out);
    return kRemove;
  }
  // A frame under way loses its memory at its deadline, and its connection when it is not over
  // `stall_ms` later: the peer has stopped, and knows that it has.
  std::int64_t next = context_.follower.on_timer(now_ns);
  std::int64_t stall_ns = ms(context_.options.stall_ms);
  bool stalled = false;
  auto look = [&](ServerRequest& request, auto&& drop) {
    if (now_ns >= request.deadline_ns && !request.released()) drop();
    std::int64_t due = request.deadline_ns + (request.released() ? stall_ns : 0);
    stalled = stalled || now_ns >= due;
    next = std::min(next, due);
  };
  if (incoming_ && wire::has_request_payload(wire::Type{incoming_->header.type})) {
    look(*incoming_, [&] { drop_incoming(Status::kExpired); });
  }
  if (!replies_.empty() && replies_.front().started && replies_.front().request) {
    look(*replies_.front().request, [&] { drop_memory(replies_.front(), Status::kExpired); });
  }
  if (stalled) count(context_.counters.stalls);
  return stalled ? kRemove : next;
}

void ServerConnection::on_removed() {
  if (incoming_) incoming_->release(Status::kUnreachable);
  for (Reply& reply : replies_) {
    if (reply.request) reply.request->release(Status::kUnreachable);
  }
  incoming_.reset();
  replies_.clear();
  claims_.abort(nullptr);
  context_.follower.gone(token);
  socket_.reset();
  if (!peer_.empty() && --context_.peers[peer_] == 0) context_.peers.erase(peer_);
  context_.counters.connections_open.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace moonpool
