// A ring of io_uring, by its raw system calls: one thread submits and reaps.
#pragma once
#include <linux/io_uring.h>

#include <cstdint>

#include "socket_io.hpp"

namespace moonpool {

class Uring {
 public:
  // Throws std::system_error where there is none: kernels before 5.11, seccomp, the sysctl
  // kernel.io_uring_disabled.
  explicit Uring(unsigned entries);
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // An empty entry to fill in; it goes to the kernel with the next enter(). Never more than
  // `entries` between two enters.
  io_uring_sqe& add();
  // Submits what was added; waits until a completion is there or `until_ns` (CLOCK_MONOTONIC).
  void enter(std::int64_t until_ns);
  // The next completion; false when there is none.
  bool reap(std::uint64_t* user_data, std::int32_t* result);

 private:
  void* map(std::size_t size, std::uint64_t offset);

  Descriptor fd_;
  io_uring_params params_{};
  void* rings_ = nullptr;
  std::size_t rings_size_ = 0;
  io_uring_sqe* entries_ = nullptr;
  std::size_t entries_size_ = 0;
  unsigned added_ = 0;
};

}  // namespace moonpool
