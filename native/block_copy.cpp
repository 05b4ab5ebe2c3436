#include "block_copy.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

#include "copy.hpp"
#include "crc.hpp"

namespace moonpool {
namespace {

std::int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::byte* inside(const Range& range, std::uint64_t offset, std::uint64_t length, std::size_t block,
                  const char* what) {
  // Written without a sum, which could wrap.
  if (offset > range.size || length > range.size - offset) {
    throw std::out_of_range("block " + std::to_string(block) + ": offset " +
                            std::to_string(offset) + " with " + std::to_string(length) +
                            " bytes is outside the " + what + " of " + std::to_string(range.size) +
                            " bytes");
  }
  return range.data + offset;
}

std::uint64_t total(std::span<const std::uint64_t> lengths) {
  std::uint64_t sum = 0;
  for (const std::uint64_t length : lengths) sum += length;
  return sum;
}

bool overlap(const std::byte* a, const std::byte* b, std::size_t size) {
  return a < b + size && b < a + size;
}

std::uint32_t copy_piece(std::byte* dst, const std::byte* src, std::size_t size, std::uint32_t seed,
                         bool checksum, Caching caching) {
  if (overlap(dst, src, size)) {
    std::memmove(dst, src, size);
    return checksum ? crc32c(dst, size, seed) : 0;
  }
  if (checksum) return copy_crc32c(dst, src, size, seed, caching);
  std::memcpy(dst, src, size);
  return 0;
}

}  // namespace

BlockCopy::BlockCopy(Range dst, std::span<const std::uint64_t> dst_offsets, Range src,
                     std::span<const std::uint64_t> src_offsets,
                     std::span<const std::uint64_t> lengths, bool checksum)
    : past_caches_(total(lengths) >= kStreamBytes) {
  if (dst_offsets.size() != lengths.size() || src_offsets.size() != lengths.size()) {
    throw std::invalid_argument("dst_offsets, src_offsets and lengths differ in size");
  }
  blocks_.reserve(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    blocks_.push_back({inside(dst, dst_offsets[i], lengths[i], i, "destination"),
                       inside(src, src_offsets[i], lengths[i], i, "source"), lengths[i]});
  }
  status_.assign(lengths.size(), static_cast<std::uint8_t>(Status::kBusy));
  if (checksum) crc_.assign(lengths.size(), 0);
}

Status BlockCopy::run(std::int64_t deadline_ns) {
  Status outcome = interrupted(deadline_ns);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (outcome == Status::kOk) {
      outcome = copy_block(blocks_[i], crc_.empty() ? nullptr : &crc_[i], deadline_ns);
    }
    status_[i] = static_cast<std::uint8_t>(outcome);
  }
  return outcome;
}

Status BlockCopy::copy_block(const Block& block, std::uint32_t* crc, std::int64_t deadline_ns) {
  const Caching caching = past_caches_ ? Caching::kPast : Caching::kKeep;
  std::uint32_t running = 0;
  for (std::size_t done = 0; done < block.size;) {
    if (unchecked_bytes_ >= kPieceBytes) {
      unchecked_bytes_ = 0;
      if (const Status stop = interrupted(deadline_ns); stop != Status::kOk) return stop;
    }
    const std::size_t piece = std::min(block.size - done, kPieceBytes);
    running =
        copy_piece(block.dst + done, block.src + done, piece, running, crc != nullptr, caching);
    done += piece;
    unchecked_bytes_ += piece;
  }
  if (crc != nullptr) *crc = running;
  return Status::kOk;
}

Status BlockCopy::interrupted(std::int64_t deadline_ns) const {
  if (cancelled_.load(std::memory_order_relaxed)) return Status::kCancelled;
  return now_ns() >= deadline_ns ? Status::kExpired : Status::kOk;
}

}  // namespace moonpool
