#include "uring.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace moonpool {
namespace {

constexpr unsigned kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

unsigned* word(void* rings, std::uint32_t offset) {
  return reinterpret_cast<unsigned*>(static_cast<std::byte*>(rings) + offset);
}

}  // namespace

Uring::Uring(unsigned entries) {
  const long fd = ::syscall(SYS_io_uring_setup, entries, &params_);
  if (fd < 0) fail(errno, "io_uring_setup");
  fd_ = Descriptor(static_cast<int>(fd));
  if ((params_.features & kNeeded) != kNeeded) fail(ENOSYS, "io_uring of this kernel is too old");
  const std::size_t submissions = params_.sq_off.array + params_.sq_entries * sizeof(unsigned);
  const std::size_t completions = params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe);
  rings_size_ = std::max(submissions, completions);
  rings_ = map(rings_size_, IORING_OFF_SQ_RING);
  entries_size_ = params_.sq_entries * sizeof(io_uring_sqe);
  try {
    entries_ = static_cast<io_uring_sqe*>(map(entries_size_, IORING_OFF_SQES));
  } catch (...) {
    ::munmap(rings_, rings_size_);
    throw;
  }
  unsigned* const array = word(rings_, params_.sq_off.array);
  for (unsigned i = 0; i < params_.sq_entries; ++i) array[i] = i;
}

Uring::~Uring() {
  ::munmap(entries_, entries_size_);
  ::munmap(rings_, rings_size_);
}

void* Uring::map(std::size_t size, std::uint64_t offset) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(),
                        static_cast<off_t>(offset));
  if (memory == MAP_FAILED) fail(errno, "mapping an io_uring");
  // A forked child has no business with our ring.
  ::madvise(memory, size, MADV_DONTFORK);
  return memory;
}

io_uring_sqe& Uring::add() {
  std::atomic_ref<unsigned> tail(*word(rings_, params_.sq_off.tail));
  const unsigned mask = params_.sq_entries - 1;
  io_uring_sqe& entry = entries_[(tail.load(std::memory_order_relaxed) + added_) & mask];
  std::memset(&entry, 0, sizeof(entry));
  added_++;
  return entry;
}

void Uring::enter(std::int64_t until_ns) {
  std::atomic_ref<unsigned> tail(*word(rings_, params_.sq_off.tail));
  tail.store(tail.load(std::memory_order_relaxed) + added_, std::memory_order_release);
  unsigned unsent = added_;
  added_ = 0;
  while (true) {
    const std::int64_t left_ns = std::max<std::int64_t>(0, until_ns - monotonic_ns());
    __kernel_timespec timeout{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    io_uring_getevents_arg how{};
    how.ts = reinterpret_cast<std::uint64_t>(&timeout);
    const long sent = ::syscall(SYS_io_uring_enter, fd_.get(), unsent, 1,
                                IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &how, sizeof(how));
    if (sent >= 0) unsent -= std::min(unsent, static_cast<unsigned>(sent));
    const int error = sent < 0 ? errno : 0;
    if (error != 0 && error != ETIME && error != EINTR && error != EAGAIN) {
      fail(error, "io_uring_enter");
    }
    if (unsent == 0) return;
  }
}

bool Uring::reap(std::uint64_t* user_data, std::int32_t* result) {
  std::atomic_ref<unsigned> head(*word(rings_, params_.cq_off.head));
  std::atomic_ref<unsigned> tail(*word(rings_, params_.cq_off.tail));
  const unsigned at = head.load(std::memory_order_relaxed);
  if (at == tail.load(std::memory_order_acquire)) return false;
  const auto* entries =
      reinterpret_cast<const io_uring_cqe*>(static_cast<std::byte*>(rings_) + params_.cq_off.cqes);
  const io_uring_cqe& entry = entries[at & (params_.cq_entries - 1)];
  *user_data = entry.user_data;
  *result = entry.res;
  head.store(at + 1, std::memory_order_release);
  return true;
}

}  // namespace moonpool
