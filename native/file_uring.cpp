// File jobs over io_uring: one thread keeps up to `depth` pieces with the kernel.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "file_io.hpp"
#include "uring.hpp"

namespace moonpool {
namespace {

class UringIo final : public FileIo {
 public:
  explicit UringIo(const FileIoOptions& options)
      : FileIo(options),
        ring_(options.depth + 1),
        slots_(options.depth),
        wake_fd_(::eventfd(0, EFD_CLOEXEC)) {
    if (!wake_fd_) throw std::system_error(errno, std::generic_category(), "eventfd");
    for (unsigned i = 0; i < options.depth; ++i) free_.push_back(i);
    try_ring();
    thread_ = std::thread([this] { run(); });
  }
  ~UringIo() override { close(); }
  const char* backend() const override { return "io_uring"; }

 private:
  static constexpr std::uint64_t kWake = ~std::uint64_t{0};

  // Some sandboxes let a ring be made and refuse to use it: seen here, not in the thread.
  void try_ring() {
    ring_.add().opcode = IORING_OP_NOP;
    ring_.enter(monotonic_ns() + 1'000'000'000);
    std::uint64_t number = 0;
    std::int32_t result = 0;
    if (!ring_.reap(&number, &result) || result != 0) {
      throw std::system_error(ENOSYS, std::generic_category(), "io_uring does not answer");
    }
  }

  void wake() override {
    // What is awake looks into the queue before it sleeps.
    if (!asleep_) return;
    asleep_ = false;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
  }

  void join() override { thread_.join(); }

  void run() {
    listen();
    while (true) {
      std::int64_t until_ns = 0;
      {
        std::lock_guard lock(mutex_);
        const std::int64_t now_ns = monotonic_ns();
        fill(now_ns);
        if (stopping_ && free_.size() == slots_.size()) return;
        until_ns = expire(now_ns);
        asleep_ = true;
      }
      ring_.enter(until_ns);
      {
        std::lock_guard lock(mutex_);
        asleep_ = false;
      }
      reap();
    }
  }

  void listen() {
    io_uring_sqe& entry = ring_.add();
    entry.opcode = IORING_OP_READ;
    entry.fd = wake_fd_.get();
    entry.addr = reinterpret_cast<std::uint64_t>(&woken_);
    entry.len = sizeof(woken_);
    entry.user_data = kWake;
  }

  void fill(std::int64_t now_ns) {
    while (!free_.empty()) {
      std::optional<Work> work = take(now_ns);
      if (!work) return;
      const unsigned slot = free_.back();
      free_.pop_back();
      const auto& [job, piece] = *work;
      io_uring_sqe& entry = ring_.add();
      entry.opcode = job->write ? IORING_OP_WRITE : IORING_OP_READ;
      entry.fd = job->fd;
      entry.addr = reinterpret_cast<std::uint64_t>(piece.memory);
      entry.len = static_cast<std::uint32_t>(piece.size);
      entry.off = piece.offset;
      entry.user_data = slot;
      slots_[slot] = std::move(work);
    }
  }

  void reap() {
    std::uint64_t number = 0;
    std::int32_t result = 0;
    while (ring_.reap(&number, &result)) {
      if (number == kWake) {
        listen();
        continue;
      }
      const std::optional<Work> work = std::exchange(slots_[number], std::nullopt);
      tell(*work, result);
      free_.push_back(static_cast<unsigned>(number));
    }
  }

  Uring ring_;
  std::vector<std::optional<Work>> slots_;
  std::vector<unsigned> free_;
  Descriptor wake_fd_;
  std::uint64_t woken_ = 0;
  bool asleep_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<FileIo> make_uring_io(const FileIoOptions& options) {
  return std::make_unique<UringIo>(options);
}

}  // namespace moonpool
