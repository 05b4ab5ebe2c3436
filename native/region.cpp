#include "region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace moonpool {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

SharedMemory::SharedMemory(Descriptor fd, std::uint64_t size, bool writable)
    : fd_(std::move(fd)), size_(size), writable_(writable), owner_(::getpid()) {
  void* at =
      ::mmap(nullptr, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) fail("cannot map " + std::to_string(size) + " bytes");
  memory_ = static_cast<std::uint8_t*>(at);
  // Where the host forbids huge pages this changes nothing.
  ::madvise(at, size, MADV_HUGEPAGE);
  ::madvise(at, size, MADV_DONTFORK);
}

SharedMemory::~SharedMemory() {
  if (memory_ && owner_ == ::getpid()) ::munmap(memory_, size_);
}

std::shared_ptr<SharedMemory> SharedMemory::allocate(std::uint64_t size) {
  if (size == 0 || size > std::uint64_t{1} << 46) {
    throw std::invalid_argument("a shared region has 1 to 2^46 bytes, got " + std::to_string(size));
  }
  Descriptor fd(::memfd_create("moonpool-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail("cannot make a memfd");
  int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size));
  if (error != 0) {
    errno = error;
    fail("cannot allocate " + std::to_string(size) + " bytes of shared memory");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("cannot seal shared memory");
  }
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(fd), size, true));
}

std::shared_ptr<SharedMemory> SharedMemory::map(Descriptor fd, std::uint64_t size, bool writable) {
  struct stat info {};
  // Memory that its owner can shrink would turn a read into a SIGBUS.
  int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (!fd || ::fstat(fd.get(), &info) != 0 || seals < 0 || !(seals & F_SEAL_SHRINK) ||
      static_cast<std::uint64_t>(info.st_size) != size || size == 0) {
    throw std::invalid_argument("the peer sent no sealed memory of " + std::to_string(size) +
                                " bytes");
  }
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(fd), size, writable));
}

std::uint64_t RegionTable::add(Region region) {
  std::lock_guard lock(mutex_);
  if (regions_.size() >= regions_max_) {
    throw std::length_error("regions_max = " + std::to_string(regions_max_) +
                            " regions are registered; unregister some first");
  }
  region.id = next_id_++;
  std::uint64_t id = region.id;
  regions_.emplace(id, std::move(region));
  return id;
}

bool RegionTable::remove(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  return regions_.erase(id) > 0;
}

std::optional<Region> RegionTable::find(std::uint64_t id) const {
  std::lock_guard lock(mutex_);
  auto found = regions_.find(id);
  if (found == regions_.end()) return std::nullopt;
  return found->second;
}

std::vector<Region> RegionTable::all() const {
  std::lock_guard lock(mutex_);
  std::vector<Region> list;
  for (const auto& [id, region] : regions_) list.push_back(region);
  return list;
}

}  // namespace moonpool
