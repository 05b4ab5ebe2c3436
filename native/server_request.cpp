#include "server_request.hpp"

namespace moonpool {

void ServerRequest::release(Status why) {
  if (released_) return;
  released_ = true;
  set_all(why);
}

void ServerRequest::set_all(Status status) {
  for (auto& record : records) record = wire::ReplyRecord{.status = code(status)};
}

Directory ServerContext::directory() const {
  Directory list;
  for (const Region& region : regions.all()) {
    list.regions.push_back(
        {region.id, region.size, region.writable, region.shared != nullptr, region.name});
  }
  list.segments = agents.offers();
  return list;
}

std::unique_ptr<ServerRequest> make_request(ServerContext& context, ConnectionClaims& claims,
                                            const wire::Header& header, std::int64_t deadline_ns) {
  if (wire::Type{header.type} == wire::Type::kFence) {
    return make_fence(context, header, deadline_ns);
  }
  if (wire::Type{header.type} == wire::Type::kNotify) {
    return make_notify(context, header, deadline_ns);
  }
  auto request = make_raw_request(context, header, deadline_ns);
  return request ? std::move(request) : make_object_request(context, claims, header, deadline_ns);
}

}  // namespace moonpool
