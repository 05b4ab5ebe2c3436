#include "segment_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "crc.hpp"

namespace moonpool {

namespace {

constexpr long kHugetlbfsMagic = 0x958458f6;
constexpr std::uint32_t kPageBytes = 4096;
constexpr std::uint64_t kHugePageBytes = 2ull << 20;
constexpr std::uint64_t kHugeFrom = 64ull << 20;  // data areas from here on start on a huge page
constexpr std::uint64_t kAreaMax = 1ull << 46;

[[noreturn]] void throw_errno(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::uint32_t page_bytes_of(int fd) {
  struct statfs where {};
  if (::fstatfs(fd, &where) == 0 && where.f_type == kHugetlbfsMagic) {
    return static_cast<std::uint32_t>(where.f_bsize);
  }
  return kPageBytes;
}

std::string parent_of(const std::string& path) {
  const std::size_t cut = path.rfind('/');
  if (cut == std::string::npos) return ".";
  return cut == 0 ? "/" : path.substr(0, cut);
}

// Whoever may write the folder could swap the file, so it must be ours alone.
void check_folder(const std::string& path) {
  const std::string folder = parent_of(path);
  struct stat at {};
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw_errno(errno, "folder " + folder);
  if (::stat(folder.c_str(), &at) != 0) throw_errno(errno, "folder " + folder);
  if (at.st_uid != ::geteuid() || (at.st_mode & 077) != 0) {
    throw_errno(EACCES,
                "folder " + folder +
                    " must belong to this user and be closed to others: chmod 700 it, or name "
                    "another one");
  }
}

// True when these pages become huge only where a mapping asks for it: then they must be faulted in
// through such a mapping before anything else allocates them. The file's mount says so, in
// mountinfo: "36 35 0:32 / /dev/shm rw - tmpfs shm rw,size=8g,huge=advise".
bool huge_on_advice(int fd) {
  struct stat at {};
  if (::fstat(fd, &at) != 0) return false;
  const std::string device =
      std::to_string(major(at.st_dev)) + ":" + std::to_string(minor(at.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, mounted;
    words >> id >> parent >> mounted;
    if (mounted == device) return line.find("huge=advise") != std::string::npos;
  }
  return false;
}

[[noreturn]] void throw_no_space(const std::string& name, std::uint64_t bytes) {
  throw SegmentSpace(name + ": no space for " + std::to_string(bytes) +
                     " bytes; lower the memory, or use a bigger file system (/dev/shm in a "
                     "container is often 64 MiB)");
}

// Looked at first, because allocating until the file system is full would harm its other users.
void check_space(int fd, std::uint64_t bytes, const std::string& name) {
  struct statvfs has {};
  if (::fstatvfs(fd, &has) != 0 || has.f_blocks == 0) return;  // without a limit
  if (bytes / has.f_frsize > has.f_bavail) throw_no_space(name, bytes);
}

void allocate_pages(int fd, const Geometry& geometry, bool populate, const std::string& name) {
  const std::uint64_t bytes = geometry.file_bytes;
  check_space(fd, bytes, name);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw_errno(errno, "size of " + name);
  if (populate && geometry.page_bytes == kPageBytes && huge_on_advice(fd)) {
    const Mapping map(fd, 0, bytes, true);
    map.advise_huge();
    map.populate(true);
  }
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error == ENOSPC || error == ENOMEM) throw_no_space(name, bytes);
  if (error != 0) throw_errno(error, "allocation of " + name);
}

std::string version_text(std::uint32_t version) {
  return "format version " + std::to_string(version) + ", this program knows " +
         std::to_string(kSegmentVersion);
}

}  // namespace

Geometry plan_geometry(const SegmentSpec& spec, std::uint32_t page_bytes) {
  if (spec.capacity_bytes == 0 || spec.capacity_bytes > kAreaMax ||
      spec.headroom_bytes > kAreaMax) {
    throw std::invalid_argument("capacity_bytes must be 1 to 2**46, headroom_bytes at most 2**46");
  }
  if (spec.slots == 0 || spec.slots > kSlotsMax) {
    throw std::invalid_argument("slots must be 1 to 2**28");
  }
  if (spec.rows > kRowsMax) throw std::invalid_argument("rows must be at most 2**16");
  if (spec.trust_domain.size() > kTrustDomainMax) {
    throw std::invalid_argument("trust_domain must be at most 256 bytes");
  }
  Geometry geometry{};
  geometry.version = kSegmentVersion;
  geometry.page_bytes = page_bytes;
  geometry.slots = spec.slots;
  geometry.rows = spec.rows;
  geometry.tombstones = spec.tombstones;
  geometry.capacity_bytes = spec.capacity_bytes;
  geometry.headroom_bytes = spec.headroom_bytes;
  geometry.data_bytes =
      round_up(spec.capacity_bytes, kGranule) + round_up(spec.headroom_bytes, kGranule);
  geometry.slots_offset = kPageBytes;
  geometry.rows_offset =
      round_up(geometry.slots_offset + sizeof(Slot) * std::uint64_t{spec.slots}, page_bytes);
  geometry.tombstones_offset =
      round_up(geometry.rows_offset + sizeof(ClientRow) * std::uint64_t{spec.rows}, page_bytes);
  const std::uint64_t align = geometry.data_bytes >= kHugeFrom
                                  ? std::max<std::uint64_t>(page_bytes, kHugePageBytes)
                                  : page_bytes;
  geometry.data_offset = round_up(
      geometry.tombstones_offset + sizeof(Tombstone) * std::uint64_t{spec.tombstones}, align);
  geometry.file_bytes = round_up(geometry.data_offset + geometry.data_bytes, page_bytes);
  geometry.trust_domain_bytes = static_cast<std::uint32_t>(spec.trust_domain.size());
  std::copy(spec.trust_domain.begin(), spec.trust_domain.end(), geometry.trust_domain);
  return geometry;
}

OwnedFd open_segment(const std::string& path, bool writable) {
  const int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW;
  OwnedFd fd([&] { return ::open(path.c_str(), flags); });
  if (fd.get() < 0) throw_errno(errno, "segment " + path);
  struct stat at {};
  if (::fstat(fd.get(), &at) != 0) throw_errno(errno, "segment " + path);
  if (!S_ISREG(at.st_mode)) throw SegmentFormat(path + ": not a regular file");
  if (at.st_uid != ::geteuid()) throw_errno(EACCES, "segment " + path + " belongs to another user");
  return fd;
}

OwnedFd reopen_segment(int fd) {
  // A duplicate would share the owner's locks; a new open file description has its own.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  OwnedFd own([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); });
  if (own.get() < 0) throw_errno(errno, "segment of descriptor " + std::to_string(fd));
  return own;
}

CreatedFile create_segment_file(const std::optional<std::string>& path, const SegmentSpec& spec) {
  plan_geometry(spec, kPageBytes);  // refuse impossible numbers before anything is made
  if (path) check_folder(*path);
  const std::string name = path.value_or("an unnamed segment");
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  CreatedFile made{OwnedFd([&] {
                     return path ? ::open(path->c_str(), kFlags, 0600)
                                 : ::memfd_create("moonpool-segment",
                                                  MFD_CLOEXEC | MFD_ALLOW_SEALING);
                   }),
                   {}};
  const int raw = made.fd.get();
  if (raw < 0) throw_errno(errno, "creation of " + name);
  try {
    if (!lock_byte(raw, kOwnerLockByte))
      throw SegmentLocked(name + ": locked while it was created");
    made.geometry = plan_geometry(spec, page_bytes_of(raw));
    if (::getrandom(made.geometry.incarnation, sizeof made.geometry.incarnation, 0) !=
        static_cast<ssize_t>(sizeof made.geometry.incarnation)) {
      throw_errno(errno, "random numbers");
    }
    allocate_pages(raw, made.geometry, spec.populate, name);
    if (!path && ::fcntl(raw, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
      throw_errno(errno, "sealing of " + name);
    }
  } catch (...) {
    if (path) ::unlink(path->c_str());
    throw;
  }
  return made;
}

Geometry read_geometry(int fd, std::string_view name) {
  struct Head {
    char magic[8];
    Geometry geometry;
    std::uint32_t crc;
  } head{};
  const std::string file(name);
  struct stat at {};
  if (::fstat(fd, &at) != 0) throw_errno(errno, "segment " + file);
  const ssize_t got = ::pread(fd, &head, sizeof head, 0);
  if (got < static_cast<ssize_t>(offsetof(Head, crc) + sizeof head.crc)) {
    throw SegmentFormat(file + ": too short to be a segment");
  }
  if (std::memcmp(head.magic, kSegmentMagic, sizeof kSegmentMagic) != 0) {
    const bool empty = head.magic[0] == 0;
    throw SegmentFormat(file + (empty ? ": its creation was never finished; remove it"
                                      : ": not a segment of Moonpool"));
  }
  const Geometry& geometry = head.geometry;
  if (geometry.version != kSegmentVersion) {
    throw SegmentFormat(file + ": " + version_text(geometry.version));
  }
  if (crc32c(&geometry, sizeof geometry) != head.crc) {
    throw SegmentFormat(file + ": its superblock is damaged");
  }
  if (static_cast<std::uint64_t>(at.st_size) < geometry.file_bytes) {
    throw SegmentFormat(file + ": truncated to " + std::to_string(at.st_size) + " of " +
                        std::to_string(geometry.file_bytes) + " bytes");
  }
  return geometry;
}

SegmentInfo inspect_segment(const std::string& path) {
  SegmentInfo info;
  const OwnedFd fd = open_segment(path, false);
  struct stat at {};
  if (::fstat(fd.get(), &at) == 0) info.file_bytes = static_cast<std::uint64_t>(at.st_size);
  info.owner_alive = is_locked(fd.get(), kOwnerLockByte);
  try {
    info.geometry = read_geometry(fd.get(), path);
  } catch (const SegmentFormat& error) {
    info.problem = error.what();
    return info;
  }
  const Mapping map(fd.get(), 0, info.geometry.page_bytes, false);
  const auto* superblock = reinterpret_cast<const Superblock*>(map.data());
  info.owner_pid = superblock->owner_pid;
  info.term = superblock->terms[superblock->term_index.load() & 1].term;
  info.valid_until_ns = superblock->valid_until_ns.load();
  for (std::uint32_t row = 0; row < info.geometry.rows; ++row) {
    info.clients_alive += is_locked(fd.get(), row_lock_byte(row)) ? 1 : 0;
  }
  return info;
}

bool remove_dead_segment(const std::string& path) {
  const OwnedFd fd = open_segment(path, true);
  if (!lock_byte(fd.get(), kOwnerLockByte)) return false;
  if (::unlink(path.c_str()) != 0) throw_errno(errno, "removal of " + path);
  return true;
}

}  // namespace moonpool
