// What a segment needs of the operating system: descriptors, mappings and locks that know of forks.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "process_number.hpp"
#include "segment_file.hpp"

namespace moonpool {

namespace {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

// Descriptors that a forked child must close: its copies would keep locks of a dead parent alive.
struct ForkRegistry {
  std::mutex mutex;
  std::set<int> fds;
};

ForkRegistry& registry() {
  static ForkRegistry* instance = [] {
    auto* made =
        new ForkRegistry;  // lives as long as the process: destructors of others still need it
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     ForkRegistry& child = registry();
                     for (const int fd : child.fds) ::close(fd);
                     child.fds.clear();
                     child.mutex.unlock();
                   });
    return made;
  }();
  return *instance;
}

struct flock lock_of(short type, std::uint64_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

}  // namespace

OwnedFd::OwnedFd(const std::function<int()>& open) : process_(process_number()) {
  const std::lock_guard lock(registry().mutex);
  fd_ = open();
  if (fd_ >= 0) registry().fds.insert(fd_);
}

OwnedFd::~OwnedFd() { close(); }

OwnedFd::OwnedFd(OwnedFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), process_(other.process_) {}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    process_ = other.process_;
  }
  return *this;
}

void OwnedFd::close() {
  if (fd_ < 0) return;
  const std::lock_guard lock(registry().mutex);
  // In a forked child the number may belong to somebody else by now.
  if (process_ == process_number() && registry().fds.erase(fd_) == 1) ::close(fd_);
  fd_ = -1;
}

Mapping::Mapping(int fd, std::uint64_t offset, std::uint64_t bytes, bool writable)
    : bytes_(bytes), process_(process_number()) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "mapping of a segment");
  ::madvise(at, bytes, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(at);
}

Mapping::~Mapping() { unmap(); }

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), process_(other.process_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = other.bytes_;
    process_ = other.process_;
  }
  return *this;
}

void Mapping::unmap() {
  // A forked child never had the mapping; the addresses may be somebody else's there.
  if (data_ != nullptr && process_ == process_number()) ::munmap(data_, bytes_);
  data_ = nullptr;
}

void Mapping::advise_huge() const { ::madvise(data_, bytes_, MADV_HUGEPAGE); }

bool Mapping::populate(bool writable) const {
  return ::madvise(data_, bytes_, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
}

bool lock_byte(int fd, std::uint64_t byte) {
  struct flock lock = lock_of(F_WRLCK, byte);
  if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  throw std::system_error(errno, std::generic_category(), "lock of a segment");
}

void unlock_byte(int fd, std::uint64_t byte) {
  struct flock lock = lock_of(F_UNLCK, byte);
  ::fcntl(fd, F_OFD_SETLK, &lock);
}

bool is_locked(int fd, std::uint64_t byte) {
  struct flock lock = lock_of(F_WRLCK, byte);
  // Unknown counts as held: memory is then returned later, never too early.
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace moonpool
