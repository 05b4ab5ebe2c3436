// File jobs: bytes, status and checksums over both backends, cancel, deadlines, closing under load.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "../crc.hpp"
#include "../file_io.hpp"
#include "../socket_io.hpp"
#include "check.hpp"

namespace {

using namespace moonpool;
using Words = std::vector<std::uint64_t>;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::vector<std::byte> stamped(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  std::minstd_rand random(seed);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random() >> 7);
  return bytes;
}

struct TempFile {
  explicit TempFile(const std::vector<std::byte>& content) {
    char path[] = "/tmp/moonpool-file-XXXXXX";
    fd = ::mkstemp(path);
    ::unlink(path);
    CHECK(fd >= 0);
    CHECK_EQ(::write(fd, content.data(), content.size()), content.size());
  }
  ~TempFile() { ::close(fd); }
  int fd;
};

// Both backends, or one where this kernel has no io_uring for us.
std::vector<std::unique_ptr<FileIo>> backends(const FileIoOptions& options = {}) {
  std::vector<std::unique_ptr<FileIo>> all;
  all.push_back(make_thread_io(options));
  try {
    all.push_back(make_uring_io(options));
  } catch (const std::system_error& error) {
    std::printf("  no io_uring here: %s\n", error.what());
  }
  return all;
}

struct Blocks {
  Words memory, file, lengths;
};

std::shared_ptr<FileJob> job_of(int fd, bool write, std::vector<std::byte>& memory,
                                const Blocks& blocks, std::int64_t deadline_ns = kNever) {
  static std::uint64_t id = 0;
  return std::make_shared<FileJob>(++id, FileRequest{fd,
                                                     write,
                                                     {memory.data(), memory.size()},
                                                     blocks.memory,
                                                     blocks.file,
                                                     blocks.lengths,
                                                     deadline_ns,
                                                     true});
}

// Blocks in random order that leave no two alike and touch at random.
Blocks random_blocks(std::mt19937_64& random, std::size_t size) {
  Blocks blocks;
  std::uint64_t at = 0;
  while (at < size) {
    const std::uint64_t length = std::min<std::uint64_t>(
        random() % 3 == 0 ? random() % (3 << 20) : random() % 9000, size - at);
    blocks.memory.push_back(at);
    blocks.lengths.push_back(length);
    at += length + (random() % 2) * (random() % 100);
  }
  blocks.file = blocks.memory;
  if (random() % 2) {  // the other way round in the file
    std::uint64_t end = size;
    for (std::size_t i = 0; i < blocks.file.size(); ++i) {
      end -= blocks.lengths[i];
      blocks.file[i] = end;
    }
  }
  return blocks;
}

TEST(blocks_arrive_over_both_backends) {
  constexpr std::size_t kSize = 8 << 20;
  for (const auto& io : backends({.depth = 5, .threads = 3})) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      std::mt19937_64 random(seed);
      const std::vector<std::byte> before = stamped(kSize, seed);
      TempFile file(before);
      const Blocks blocks = random_blocks(random, kSize);
      std::vector<std::byte> memory = stamped(kSize, seed + 100);
      std::vector<std::byte> want = seed % 2 ? before : memory;
      for (std::size_t i = 0; i < blocks.lengths.size(); ++i) {
        const std::byte* from =
            (seed % 2 ? memory.data() + blocks.memory[i] : before.data() + blocks.file[i]);
        std::byte* to = want.data() + (seed % 2 ? blocks.file[i] : blocks.memory[i]);
        if (blocks.lengths[i] > 0) std::memcpy(to, from, blocks.lengths[i]);
      }
      const auto job = job_of(file.fd, seed % 2, memory, blocks);
      io->submit(job, seed % 4 < 2);
      CHECK(job->wait(60'000));
      CHECK(job->state() == OpState::kDone);
      for (std::size_t i = 0; i < blocks.lengths.size(); ++i) {
        CHECK_EQ(job->status()[i], 0);
        CHECK_EQ(job->crc()[i], crc32c(memory.data() + blocks.memory[i], blocks.lengths[i]));
      }
      if (seed % 2) {
        memory.resize(kSize);
        CHECK_EQ(::pread(file.fd, memory.data(), kSize, 0), kSize);
      }
      CHECK(memory == want);
    }
  }
}

TEST(a_block_beyond_the_end_fails_alone) {
  for (const auto& io : backends()) {
    const std::vector<std::byte> content = stamped(10'000, 1);
    TempFile file(content);
    std::vector<std::byte> memory(30'000);
    const auto job =
        job_of(file.fd, false, memory,
               {{0, 10'000, 20'000, 30'000}, {0, 9'000, 20'000, 5}, {10, 2'000, 7, 0}});
    io->submit(job, false);
    CHECK(job->wait(60'000));
    CHECK(job->state() == OpState::kFailed);
    const std::vector<std::uint8_t> want{0, 3, 3, 0};
    CHECK(job->status() == want);
    CHECK(job->error().find("the file ends before") != std::string::npos);
    CHECK(std::memcmp(memory.data(), content.data(), 10) == 0);
  }
}

TEST(what_the_disk_refuses_is_told) {
  for (const auto& io : backends()) {
    const int null = ::open("/dev/full", O_RDWR | O_CLOEXEC);
    std::vector<std::byte> memory(100);
    const auto job = job_of(null, true, memory, {{0}, {0}, {100}});
    io->submit(job, false);
    CHECK(job->wait(60'000));
    CHECK(job->state() == OpState::kFailed);
    CHECK_EQ(job->status()[0], 15);
    CHECK(job->error().find("No space") != std::string::npos);
    ::close(null);
  }
}

TEST(too_late_and_cancelled) {
  for (const auto& io : backends()) {
    TempFile file(stamped(5'000, 1));
    std::vector<std::byte> memory(5'000, std::byte{7});
    const auto late = job_of(file.fd, false, memory, {{0}, {0}, {5'000}}, monotonic_ns() - 1);
    io->submit(late, true);
    CHECK(late->wait(60'000));
    CHECK(late->state() == OpState::kExpired);
    CHECK_EQ(late->status()[0], 7);
    const auto cancelled = job_of(file.fd, false, memory, {{0}, {0}, {5'000}});
    cancelled->cancel();
    CHECK(cancelled->state() == OpState::kCancelled);
    io->submit(cancelled, true);
    for (const std::byte one : memory) CHECK(one == std::byte{7});
    const auto empty = job_of(file.fd, false, memory, {{}, {}, {}});
    CHECK(empty->state() == OpState::kDone);
  }
}

// What went to one place of the file is not at the others yet.
TEST(memory_written_to_several_places_is_several_blocks) {
  std::vector<std::byte> memory = stamped(1'000, 1);
  const auto job = job_of(-1, true, memory, {{0, 0, 0}, {0, 5'000, 9'000}, {1'000, 1'000, 1'000}});
  job->finished(*job->next(0), 1'000);
  job->finished(*job->next(0), -ENOSPC);
  job->cancel();
  CHECK(job->state() == OpState::kCancelled);
  const std::vector<std::uint8_t> want{0, 15, 10};
  CHECK(job->status() == want);
}

TEST(a_job_that_nothing_carries_out_expires) {
  // The pipe holds the only place: the job behind it must not wait for it.
  for (const auto& io : backends({.depth = 1, .threads = 1})) {
    int ends[2];
    CHECK(::pipe(ends) == 0);
    TempFile file(stamped(10, 1));
    std::vector<std::byte> memory(10);
    if (std::strcmp(io->backend(), "io_uring") == 0) {
      const auto stuck = job_of(ends[0], false, memory, {{0}, {0}, {10}});
      io->submit(stuck, false);
      std::vector<std::byte> other(10);
      const auto behind =
          job_of(file.fd, false, other, {{0}, {0}, {10}}, monotonic_ns() + 20'000'000);
      io->submit(behind, false);
      CHECK(behind->wait(60'000));
      CHECK(behind->state() == OpState::kExpired);
      stuck->cancel();
      CHECK(stuck->state() == OpState::kPosted);  // the kernel still has its memory
      CHECK_EQ(::write(ends[1], "0123456789", 10), 10);
      CHECK(stuck->wait(60'000));
      CHECK(stuck->state() == OpState::kDone);
    }
    ::close(ends[0]);
    ::close(ends[1]);
  }
}

// Carries nothing out by itself.
class ByHand final : public FileIo {
 public:
  using FileIo::FileIo;
  const char* backend() const override { return "hand"; }
  void move_one() {
    const std::optional<Work> work = take(0);
    tell(*work, static_cast<std::int64_t>(work->second.size));
  }

 private:
  void wake() override {}
  void join() override {}
};

TEST(a_large_job_fills_no_queue) {
  ByHand io({.jobs_max = 3});
  std::vector<std::byte> memory(12 << 20);
  const auto large = job_of(-1, true, memory, {{0}, {0}, {12 << 20}});
  io.submit(large, false);
  for (int i = 0; i < 11; ++i) io.move_one();
  const auto other = job_of(-1, true, memory, {{0}, {0}, {100}});
  io.submit(other, false);
  CHECK(other->state() == OpState::kQueued);
  io.move_one();
  io.move_one();
  CHECK(large->state() == OpState::kDone);
  CHECK(other->state() == OpState::kDone);
}

TEST(closing_under_load_leaves_memory_quiet) {
  for (unsigned turn = 0; turn < 2; ++turn) {
    for (auto& io : backends({.depth = 4, .threads = 2, .jobs_max = 8})) {
      TempFile file(stamped(4 << 20, 1));
      std::vector<std::vector<std::byte>> memory(24, std::vector<std::byte>(4 << 20));
      std::vector<std::shared_ptr<FileJob>> jobs;
      std::size_t busy = 0;
      for (auto& one : memory) {
        jobs.push_back(job_of(file.fd, turn, one, {{0}, {0}, {4 << 20}}));
        io->submit(jobs.back(), false);
      }
      std::thread rival([&] {
        for (const auto& job : jobs) job->cancel();
      });
      io->close();
      for (auto& one : memory) std::memset(one.data(), 3, one.size());
      rival.join();
      for (const auto& job : jobs) {
        CHECK(job->terminal());
        busy += job->state() == OpState::kFailed;
      }
      for (const auto& one : memory) {
        for (std::size_t i = 0; i < one.size(); i += 4096) CHECK(one[i] == std::byte{3});
      }
      const auto late = job_of(file.fd, false, memory[0], {{0}, {0}, {1}});
      io->submit(late, false);
      CHECK(late->state() == OpState::kFailed);
      CHECK(busy <= memory.size());
    }
  }
}

TEST(completions_are_told_once) {
  for (const auto& io : backends()) {
    TempFile file(stamped(100, 1));
    std::vector<std::byte> memory(100);
    const auto job = job_of(file.fd, false, memory, {{0}, {0}, {100}});
    job->notify(io->completions());
    job->notify(io->completions());
    io->submit(job, false);
    CHECK(job->wait(60'000));
    const std::vector<std::uint64_t> want{job->id};
    CHECK(io->completions().drain() == want);
    CHECK(io->completions().drain().empty());
  }
}

TEST(bad_lists) {
  TempFile file(stamped(10, 1));
  std::vector<std::byte> memory(10);
  int refused = 0;
  for (const Blocks& blocks : {Blocks{{0}, {0}, {11}}, Blocks{{11}, {0}, {0}},
                               Blocks{{0}, {~std::uint64_t{0}}, {1}}, Blocks{{0}, {0, 1}, {1}}}) {
    try {
      job_of(file.fd, false, memory, blocks);
    } catch (const std::logic_error&) {
      refused++;
    }
  }
  CHECK_EQ(refused, 4);
}

}  // namespace

TEST_MAIN()
