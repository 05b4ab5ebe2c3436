// File jobs by a pool of threads that read and write, for kernels without io_uring.
#include <unistd.h>

#include <cerrno>

#include "file_io.hpp"
#include "socket_io.hpp"

namespace moonpool {
namespace {

class ThreadIo final : public FileIo {
 public:
  explicit ThreadIo(const FileIoOptions& options) : FileIo(options) {
    for (unsigned i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadIo() override { close(); }
  const char* backend() const override { return "threads"; }

 private:
  void wake() override { work_.notify_one(); }

  void join() override {
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      const std::int64_t now_ns = monotonic_ns();
      if (const std::optional<Work> work = take(now_ns)) {
        lock.unlock();
        tell(*work, move(*work));
        lock.lock();
      } else if (stopping_) {
        return;
      } else {
        work_.wait_for(lock, std::chrono::nanoseconds(expire(now_ns) - now_ns));
      }
    }
  }

  static std::int64_t move(const Work& work) {
    const auto& [job, piece] = work;
    const auto offset = static_cast<off_t>(piece.offset);
    const ssize_t moved = job->write ? ::pwrite(job->fd, piece.memory, piece.size, offset)
                                     : ::pread(job->fd, piece.memory, piece.size, offset);
    return moved < 0 ? -errno : moved;
  }

  std::condition_variable work_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileIo> make_thread_io(const FileIoOptions& options) {
  return std::make_unique<ThreadIo>(options);
}

}  // namespace moonpool
