#include "helpers.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace moonpool {
namespace {

void all_alone(std::size_t parts, const Helpers::Work& work) {
  for (std::size_t part = 0; part < parts; part++) work(part);
}

}  // namespace

class Helpers::Crew {
 public:
  explicit Crew(std::size_t count) {
    for (std::size_t i = 0; i < count; i++) threads_.emplace_back([this] { help(); });
  }

  ~Crew() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(std::size_t parts, const Work& work) {
    std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn || threads_.empty() || parts < 2) return all_alone(parts, work);
    Job job{work, parts};
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      number_++;
    }
    wake_.notify_all();
    take(job);
    std::unique_lock lock(mutex_);
    job_ = nullptr;  // nobody joins any more; who did is waited for
    done_.wait(lock, [&] { return job.helping == 0; });
  }

 private:
  struct Job {
    const Work& work;
    std::size_t parts;
    std::atomic<std::size_t> next{0};
    std::size_t helping = 0;  // under mutex_
  };

  static void take(Job& job) {
    for (std::size_t part; (part = job.next.fetch_add(1, std::memory_order_relaxed)) < job.parts;) {
      job.work(part);
    }
  }

  void help() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || (job_ != nullptr && number_ != seen); });
      if (stop_) return;
      seen = number_;
      Job& job = *job_;
      job.helping++;
      lock.unlock();
      take(job);
      lock.lock();
      if (--job.helping == 0) done_.notify_one();
    }
  }

  std::mutex turn_;  // of callers
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  std::uint64_t number_ = 0;  // of the job
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

Helpers::Helpers(std::size_t count) : count_(count), crew_(std::make_unique<Crew>(count)) {}

Helpers::~Helpers() = default;

void Helpers::run(std::size_t parts, const Work& work) {
  if (crew_.usable()) return crew_->run(parts, work);
  all_alone(parts, work);
}

}  // namespace moonpool
