// A small segment and the few steps that every segment test takes.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "crc.hpp"
#include "segment_agent.hpp"
#include "segment_client.hpp"

namespace moonpool::check {

inline SegmentSpec small_spec(std::uint64_t bytes = 64 << 10, std::uint32_t slots = 64) {
  SegmentSpec spec;
  spec.capacity_bytes = bytes;
  spec.slots = slots;
  spec.rows = 8;
  spec.tombstones = 4;
  return spec;
}

// A private folder with a segment's path in it, removed at the end.
class Folder {
 public:
  Folder() { CHECK(::mkdtemp(name_) != nullptr); }
  ~Folder() {
    ::unlink(path().c_str());
    ::rmdir(name_);
  }
  std::string path() const { return std::string(name_) + "/segment"; }

 private:
  char name_[32] = "/tmp/moonpool-test-XXXXXX";
};

inline std::mt19937_64 seeded() {
  const std::uint64_t seed = std::random_device{}();
  std::printf("  seed %llu\n", static_cast<unsigned long long>(seed));
  return std::mt19937_64(seed);
}

struct ClaimOptions {
  std::string key = "key";
  std::string parent = "";
  std::uint64_t term = 0;
  std::uint64_t seq = 0;
  const SegmentClient* writer = nullptr;
};

inline Claimed claim(SegmentAgent& agent, std::uint64_t size, const ClaimOptions& options = {}) {
  ClaimRecord record{};
  record.size = size;
  record.term = options.term;
  record.seq = options.seq;
  record.key_len = static_cast<std::uint16_t>(options.key.size());
  record.parent_len = static_cast<std::uint16_t>(options.parent.size());
  Claimed out;
  const auto* writer = options.writer;
  agent.claim({&record, 1}, options.key + options.parent, agent.term(),
              writer ? writer->row() : kNoRow, writer ? writer->row_epoch() : 0, {&out, 1});
  return out;
}

inline Status write(SegmentAgent& agent, const Claimed& at, std::uint8_t stamp) {
  const Window window = agent.open_write(at.slot, at.generation, 0, kWholeObject);
  if (window.status != Status::kOk) return window.status;
  for (const Part& part : window.parts) std::memset(part.data, stamp, part.bytes);
  return agent.close_write(at.slot, at.generation);
}

inline Status seal(SegmentAgent& agent, const Claimed& at, std::uint32_t flags = kSealComputesCrc,
                   std::uint32_t crc = 0) {
  Status out;
  agent.seal({&at.slot, 1}, {&at.generation, 1}, {&crc, 1}, flags, agent.term(), {&out, 1});
  return out;
}

inline Status abort(SegmentAgent& agent, const Claimed& at) {
  Status out;
  agent.abort({&at.slot, 1}, {&at.generation, 1}, {&out, 1});
  return out;
}

inline Status retire(SegmentAgent& agent, const Claimed& at, std::int64_t hold_ms = 0,
                     std::int64_t now_ns = kNowNs) {
  Status out;
  agent.retire({&at.slot, 1}, {&at.generation, 1}, agent.term(), hold_ms, {&out, 1}, now_ns);
  return out;
}

// Claimed, filled with `stamp` and sealed.
inline Claimed put(SegmentAgent& agent, std::uint64_t size, std::uint8_t stamp,
                   const ClaimOptions& options = {}) {
  const Claimed at = claim(agent, size, options);
  if (at.status != Status::kOk) return at;
  CHECK_EQ(write(agent, at, stamp), Status::kOk);
  CHECK_EQ(seal(agent, at), Status::kOk);
  return at;
}

inline bool holds(SegmentClient& client, const Claimed& at, std::uint64_t size,
                  std::uint8_t stamp) {
  std::vector<std::byte> bytes(size + 1);
  const std::int64_t got = client.read(at.slot, at.generation, bytes.data(), bytes.size(), true);
  if (got != static_cast<std::int64_t>(size)) return false;
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes[i] != std::byte{stamp}) return false;
  }
  return true;
}

}  // namespace moonpool::check
