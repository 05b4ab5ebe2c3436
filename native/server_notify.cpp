// What a peer says about a transfer that has ended at its side.
#include "inbox.hpp"
#include "server_request.hpp"

namespace moonpool {
namespace {

class Notify : public ServerRequest {
 public:
  using ServerRequest::ServerRequest;

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    if (header.count != 1 || meta.size() > Inbox::kBytesMax) return false;
    bytes_.assign(meta.begin(), meta.end());
    return true;
  }

  void complete(std::span<const std::uint32_t>, std::span<const std::uint32_t>) override {
    records[0].status = code(context_.inbox.put(bytes_));
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

std::unique_ptr<ServerRequest> make_notify(ServerContext& context, const wire::Header& header,
                                           std::int64_t deadline_ns) {
  return std::make_unique<Notify>(context, header, deadline_ns);
}

}  // namespace moonpool
