#include "helpers.hpp"

namespace moonpool {

Helpers::Helpers(std::size_t count) {
  for (std::size_t i = 0; i < count; i++) threads_.emplace_back([this] { help(); });
}

Helpers::~Helpers() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Helpers::run(std::size_t parts, const Work& work) {
  std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn || threads_.empty() || parts < 2) {
    for (std::size_t part = 0; part < parts; part++) work(part);
    return;
  }
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

void Helpers::take(Job& job) {
  for (std::size_t part; (part = job.next.fetch_add(1, std::memory_order_relaxed)) < job.parts;) {
    job.work(part);
  }
}

void Helpers::help() {
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

}  // namespace moonpool
