// An accepted connection: hello, then requests in, replies out. Touched by the I/O thread only.
// A turn is bounded in bytes, and a peer that does not take its replies is not read either, so one
// connection can neither starve the others nor grow memory here.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frame_reader.hpp"
#include "frame_writer.hpp"
#include "loop.hpp"
#include "server_request.hpp"

namespace moonpool {

class ServerConnection : public Source, private FrameSink {
 public:
  // `peer`: its address, for the bound on connections of one; empty: there is none.
  ServerConnection(ServerContext& context, Descriptor socket, bool is_unix, std::string peer);

  int fd() const override { return socket_.get(); }
  bool on_event(std::uint32_t events) override;
  std::int64_t on_timer(std::int64_t now_ns) override;
  void on_removed() override;

  // Takes the memory of matching requests away, in whatever state they are.
  void withdraw(const std::function<bool(const wire::Header&)>& which, Status why);
  // Aborts what this connection has claimed in a segment.
  void drop_claims(const SegmentAgent& agent) { claims_.abort(&agent); }
  // What the client called this connection in its hello; nobody else knows it.
  const wire::Id16& nonce() const { return client_.nonce; }

 private:
  // kHello and kProof wait for the peer's frame, kReady serves, kRefusing sends its last words and
  // drops what still comes, so that these are not lost in a reset.
  enum class State { kHello, kProof, kReady, kRefusing };

  struct Reply {
    std::unique_ptr<ServerRequest> request;  // null for hello frames
    OutFrame frame;
    bool started = false;
  };

  bool on_header(const wire::Header& header, std::size_t* trailer_bytes) override;
  bool on_meta(const wire::Header& header, std::span<const std::uint8_t> meta,
               std::vector<Piece>* pieces, bool* checksum) override;
  void on_payload() override;
  bool on_frame(const wire::Header& header, std::span<const std::uint8_t> trailer) override;

  bool take_hello(std::span<const std::uint8_t> meta);
  bool take_proof(std::span<const std::uint8_t> meta);
  const std::string* token_of(const std::uint8_t* mac);
  void refuse(const std::string& text);
  void send_hello(wire::Type type, const void* meta, std::size_t size);

  bool receive();
  bool drop_input();
  bool flush();
  void start(Reply& reply);
  void drop_incoming(Status why);
  void drop_memory(Reply& reply, Status why);
  void update_events();

  ServerContext& context_;
  Descriptor socket_;
  const bool is_unix_, shares_cpu_;
  const std::string peer_;
  ConnectionClaims claims_;
  FrameReader reader_;
  FrameWriter writer_;
  State state_ = State::kHello;
  std::int64_t hello_deadline_ns_;
  wire::Hello client_;
  wire::Hello server_;
  std::optional<std::uint32_t> tenant_;  // whose token it showed; none: the cluster's
  std::vector<std::uint8_t> hello_meta_;
  std::unique_ptr<ServerRequest> incoming_;
  std::deque<Reply> replies_;
  bool shut_down_ = false;
  std::uint32_t events_ = 0;
};

}  // namespace moonpool
