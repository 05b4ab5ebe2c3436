// What reads took, in buckets of doubling width. Any threads add at one time; one reader takes all
// that has come since it took last. Knows nothing of what was read.
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace moonpool {

class ReadTimes {
 public:
  // Bucket i counts what took less than 2^(kFirstBits + i) ns, and no less than the one before;
  // the last one what took longer (8.6 s).
  static constexpr std::size_t kBuckets = 27;
  static constexpr int kFirstBits = 8;

  struct Taken {
    std::array<std::uint64_t, kBuckets> counts{};
    std::uint64_t nanoseconds = 0;
  };

  void add(std::uint64_t nanoseconds) {
    const auto bucket = static_cast<std::size_t>(std::bit_width(nanoseconds >> kFirstBits));
    counts_[bucket < kBuckets ? bucket : kBuckets - 1].fetch_add(1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed);
  }

  // A read that ends meanwhile may be counted in the one and summed up in the next.
  Taken take() {
    Taken taken;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      taken.counts[i] = counts_[i].exchange(0, std::memory_order_relaxed);
    }
    taken.nanoseconds = nanoseconds_.exchange(0, std::memory_order_relaxed);
    return taken;
  }

  // The time of one read, from here to `done`.
  class Watch {
   public:
    explicit Watch(ReadTimes& times) : times_(times), began_(now()) {}
    void done() { times_.add(static_cast<std::uint64_t>((now() - began_).count())); }

   private:
    static std::chrono::nanoseconds now() {
      return std::chrono::steady_clock::now().time_since_epoch();
    }
    ReadTimes& times_;
    std::chrono::nanoseconds began_;
  };

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> nanoseconds_{0};
};

}  // namespace moonpool
