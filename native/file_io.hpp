// Who carries file jobs out: one thread over io_uring, or a pool of threads that read and write.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "file_job.hpp"
#include "op.hpp"

namespace moonpool {

struct FileIoOptions {
  unsigned depth = 32;          // pieces with the kernel at once (io_uring)
  unsigned threads = 4;         // threads of the pool
  std::size_t jobs_max = 1024;  // jobs whose pieces are not all handed out
};

class FileIo {
 public:
  explicit FileIo(const FileIoOptions& options) : options_(options) {}
  virtual ~FileIo() = default;
  FileIo(const FileIo&) = delete;
  FileIo& operator=(const FileIo&) = delete;

  // "io_uring" or "threads".
  virtual const char* backend() const = 0;
  // Takes a job; one too many fails as busy, one after close() as unreachable. With
  // `may_be_cached` the calling thread itself reads what the page cache holds, and writes to it as
  // long as the kernel does not make it wait for the disk.
  void submit(const std::shared_ptr<FileJob>& job, bool may_be_cached);
  // Cancels all jobs; returns when every piece that was out has come back.
  void close();
  Completions& completions() { return completions_; }

 protected:
  using Work = std::pair<std::shared_ptr<FileJob>, FileJob::Piece>;

  virtual void wake() = 0;
  virtual void join() = 0;
  // The next piece, of each job in turn. Under the lock.
  std::optional<Work> take(std::int64_t now_ns);
  // Tells the job how a piece ended. Not under the lock.
  void tell(const Work& work, std::int64_t moved);
  // Ends jobs that are too late; when the next will be, or a minute from now. Under the lock.
  std::int64_t expire(std::int64_t now_ns);

  const FileIoOptions options_;
  std::mutex mutex_;
  bool stopping_ = false;

 private:
  // Under the lock.
  void line_up(const std::shared_ptr<FileJob>& job);

  std::deque<std::shared_ptr<FileJob>> jobs_;
  Completions completions_;
  // Until then the disk is behind with what was written, and no caller writes by itself.
  std::atomic<std::int64_t> behind_until_ns_{0};
};

// Throws std::system_error where the kernel has no io_uring for us (absent, forbidden, too old).
std::unique_ptr<FileIo> make_uring_io(const FileIoOptions& options);
std::unique_ptr<FileIo> make_thread_io(const FileIoOptions& options);

}  // namespace moonpool
