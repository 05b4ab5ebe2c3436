// Threads that help one caller with work in parts. The caller takes parts like everybody else, so a
// helper that wakes late finds less to do, or nothing; nobody spins, and nothing waits for a helper
// that has not begun. What a part does must not throw.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace moonpool {

class Helpers {
 public:
  using Work = std::function<void(std::size_t part)>;

  // `count` threads beside the caller's own.
  explicit Helpers(std::size_t count);
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  std::size_t count() const { return threads_.size(); }
  // Calls `work` once for each part below `parts`; what they wrote is there for the caller when it
  // returns. A second caller meanwhile does its parts alone.
  void run(std::size_t parts, const Work& work);

 private:
  struct Job {
    const Work& work;
    std::size_t parts;
    std::atomic<std::size_t> next{0};
    std::size_t helping = 0;  // under mutex_
  };

  static void take(Job& job);
  void help();

  std::mutex turn_;  // of callers
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  std::uint64_t number_ = 0;  // of the job
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace moonpool
