// What this machine can do at best: copies in and out of the caches, the same with CRC-32C, and the
// plain one-frame TCP read. One JSON line a case on stdout; usage: limits [ROUNDS].
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <cstring>
#include <deque>
#include <functional>
#include <string>

#include "copy.hpp"
#include "plain_tcp.hpp"

namespace {

constexpr std::size_t kRegion = 256 << 20;  // larger than the share of a last-level cache we get

double seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

unsigned char* allocate(std::size_t size) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) plain::die("mmap");
  ::madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<unsigned char*>(memory);
}

void fill(unsigned char* memory, std::size_t size) {
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::size_t at = 0; at < size; at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(memory + at, &state, sizeof state);
  }
}

std::string named(std::size_t size) {
  if (size >= 1 << 20) return std::to_string(size >> 20) + "MiB";
  return std::to_string(size >> 10) + "KiB";
}

struct Case {
  std::string name;
  std::size_t bytes;  // of one operation
  std::size_t count;  // operations a round
  bool each;          // time each, else the round alone: some are over faster than a clock is read
  std::vector<clockid_t> clocks;  // of the processes that work on it
  std::function<bool(std::size_t)> operation;
  std::function<bool()> arrived;  // after a round, untimed: are the right bytes in place?
};

void measure(const Case& one, int rounds) {
  const auto cpu = [&] {
    double sum = 0;
    for (const clockid_t clock : one.clocks) sum += seconds(clock);
    return sum;
  };
  std::vector<double> p50_us, gb_per_s, cpu_s_per_gb;
  bool ok = true;
  const double gb = static_cast<double>(one.bytes * one.count) * 1e-9;
  for (int round = -1; round < rounds; round++) {  // the first warms up and does not count
    std::vector<double> took;
    const double cpu_before = cpu();
    const double before = seconds(CLOCK_MONOTONIC);
    for (std::size_t i = 0; i < one.count; i++) {
      const double start = one.each ? seconds(CLOCK_MONOTONIC) : 0;
      ok = one.operation(i) && ok;
      if (one.each) took.push_back(seconds(CLOCK_MONOTONIC) - start);
    }
    const double wall = seconds(CLOCK_MONOTONIC) - before;
    const double cpu_used = cpu() - cpu_before;
    ok = one.arrived() && ok;
    if (round < 0) continue;
    p50_us.push_back(1e6 * (one.each ? median(took) : wall / static_cast<double>(one.count)));
    gb_per_s.push_back(gb / wall);
    cpu_s_per_gb.push_back(cpu_used / gb);
  }
  std::printf(
      "{\"bench\": \"limits\", \"case\": \"%s\", \"subject\": \"limit\", \"rounds\": %d, "
      "\"p50_us\": %.4g, \"gb_per_s\": %.4g, \"cpu_s_per_gb\": %.4g, \"ok\": %s}\n",
      one.name.c_str(), rounds, median(p50_us), median(gb_per_s), median(cpu_s_per_gb),
      ok ? "true" : "false");
  std::fflush(stdout);
  if (!ok) std::exit(1);
}

using Copy = std::function<bool(unsigned char*, unsigned char*, std::size_t)>;

void measure_copy(const std::string& what, int rounds, unsigned char* dst, unsigned char* src,
                  const Copy& copy) {
  const auto measure_one = [&](std::size_t size, bool cold) {
    const std::size_t count = (cold ? kRegion : kRegion / 8) / size;
    const std::size_t step = cold ? size : 0;
    std::memset(dst, 0, kRegion);
    measure({what + "_" + named(size) + (cold ? "_cold" : "_hot"),
             size,
             count,
             false,
             {CLOCK_PROCESS_CPUTIME_ID},
             [&](std::size_t i) { return copy(dst + i * step, src + i * step, size); },
             [&] { return std::memcmp(dst, src, cold ? kRegion : size) == 0; }},
            rounds);
  };
  for (const std::size_t size : {4 << 10, 64 << 10, 1 << 20}) measure_one(size, false);
  for (const std::size_t size : {64 << 10, 1 << 20, 16 << 20}) measure_one(size, true);
}

void measure_copies(int rounds, unsigned char* src) {
  unsigned char* dst = allocate(kRegion);
  measure_copy("memcpy", rounds, dst, src, [](unsigned char* to, unsigned char* from, auto size) {
    std::memcpy(to, from, size);
    asm volatile("" ::: "memory");
    return true;
  });
  measure_copy("copy_crc", rounds, dst, src, [](unsigned char* to, unsigned char* from, auto size) {
    const volatile std::uint32_t crc = moonpool::copy_crc32c(to, from, size);
    (void)crc;
    return true;
  });
  ::munmap(dst, kRegion);
}

// Forks the server; the same `memory` on both sides is what the client checks against.
void measure_tcp(int rounds, unsigned char* memory) {
  std::uint16_t port = 0;
  const int listener = plain::listen_on_loopback(port);
  const pid_t server = ::fork();
  if (server < 0) plain::die("fork");
  if (server == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    plain::serve(listener, memory, kRegion);
    std::_Exit(0);
  }
  ::close(listener);
  clockid_t server_clock{};
  if (::clock_getcpuclockid(server, &server_clock) != 0) plain::die("clock_getcpuclockid");
  const std::vector<clockid_t> clocks{CLOCK_PROCESS_CPUTIME_ID, server_clock};
  unsigned char* dst = allocate(16 << 20);
  std::memset(dst, 0, 16 << 20);
  {
    plain::Client client(port);
    const auto read = [&](std::size_t blocks, std::size_t size, std::size_t count) {
      std::string name = "tcp_read_" + (blocks > 1 ? std::to_string(blocks) + "x" : "");
      name += named(size);
      std::vector<plain::Block> asked(blocks);
      const std::size_t places = kRegion / (blocks * size);
      for (const bool with_crc : {true, false}) {
        const auto once = [&](std::size_t i) {
          for (std::size_t k = 0; k < blocks; k++) {  // in reverse, so that they are apart
            asked[k] = {((i % places) * blocks + blocks - 1 - k) * size, size};
          }
          return client.read(asked, dst, with_crc);
        };
        const auto arrived = [&] {
          for (std::size_t k = 0; k < blocks; k++) {
            if (std::memcmp(dst + k * size, memory + asked[k].offset, size) != 0) return false;
          }
          return true;
        };
        measure({name + (with_crc ? "_crc" : "_no_crc"), blocks * size, count, true, clocks, once,
                 arrived},
                rounds);
      }
    };
    // The same with `depth` asked for ahead: an operation asks for one and takes the oldest.
    const auto read_ahead = [&](std::size_t blocks, std::size_t size, std::size_t count,
                                std::size_t depth) {
      std::deque<std::vector<plain::Block>> asked;
      std::size_t last = 0;  // the room of the oldest that was taken last
      std::vector<plain::Block> taken;
      const std::size_t places = kRegion / (blocks * size);
      const auto take = [&] {
        taken = asked.front();
        asked.pop_front();
        last = (last + 1) % depth;
        return client.take(taken, dst + last * blocks * size, true);
      };
      const auto once = [&](std::size_t i) {
        std::vector<plain::Block> next(blocks);
        for (std::size_t k = 0; k < blocks; k++) {
          next[k] = {((i % places) * blocks + blocks - 1 - k) * size, size};
        }
        client.ask(next, true);
        asked.push_back(std::move(next));
        return asked.size() < depth || take();
      };
      const auto arrived = [&] {
        bool good = true;
        while (!asked.empty()) good = take() && good;
        for (std::size_t k = 0; k < blocks; k++) {
          const unsigned char* here = dst + (last * blocks + k) * size;
          good = good && std::memcmp(here, memory + taken[k].offset, size) == 0;
        }
        return good;
      };
      measure({"tcp_read_" + std::to_string(blocks) + "x" + named(size) + "_crc_" +
                   std::to_string(depth) + "_in_flight",
               blocks * size, count, true, clocks, once, arrived},
              rounds);
    };
    read(32, 4 << 10, 2000);
    read_ahead(32, 4 << 10, 2000, 4);
    read(1, 64 << 10, 2000);
    read(1, 1 << 20, 300);
    read(1, 16 << 20, 24);
  }
  int status = 0;
  ::waitpid(server, &status, 0);
  if (status != 0) {
    std::fprintf(stderr, "limits: the server ended with status %d\n", status);
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  if (rounds < 1 || rounds > 1000) {
    std::fprintf(stderr, "limits: rounds is a number from 1 to 1000\n");
    return 2;
  }
  unsigned char* src = allocate(kRegion);
  fill(src, kRegion);
  measure_tcp(rounds, src);
  measure_copies(rounds, src);
  return 0;
}
