// A client that gave a connection up asks over another one that it be over here, too: what was sent
// over the old one and has not been read yet must not be applied later.
#include "endpoint_server.hpp"

namespace moonpool {
namespace {

class Fence : public ServerRequest {
 public:
  using ServerRequest::ServerRequest;

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    return meta.empty() && header.count == 0;
  }

  // On the I/O thread, between two turns of the other connection. One that is gone already, or was
  // never here, is as quiet as one that is ended now.
  void complete(std::span<const std::uint32_t>, std::span<const std::uint32_t>) override {
    std::uint64_t old = 0;
    context_.loop.for_each([&](Source& source) {
      auto* connection = dynamic_cast<ServerConnection*>(&source);
      if (connection && connection->nonce() == header.target) old = source.token;
    });
    if (old != 0) context_.loop.remove(old);
  }
};

}  // namespace

std::unique_ptr<ServerRequest> make_fence(ServerContext& context, const wire::Header& header,
                                          std::int64_t deadline_ns) {
  return std::make_unique<Fence>(context, header, deadline_ns);
}

}  // namespace moonpool
