#include "cache_lines.hpp"

#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moonpool {
namespace {

using Step = void (*)(std::uintptr_t first, std::uintptr_t end, std::size_t line);

#if defined(__x86_64__)

__attribute__((target("clwb"))) void keep_lines(std::uintptr_t p, std::uintptr_t end,
                                                std::size_t line) {
  for (; p < end; p += line) _mm_clwb(reinterpret_cast<void*>(p));
}

__attribute__((target("clflushopt"))) void drop_lines(std::uintptr_t p, std::uintptr_t end,
                                                      std::size_t line) {
  for (; p < end; p += line) _mm_clflushopt(reinterpret_cast<void*>(p));
}

void flush_lines(std::uintptr_t p, std::uintptr_t end, std::size_t line) {
  for (; p < end; p += line) _mm_clflush(reinterpret_cast<const void*>(p));
}

struct Steps {
  Step write_back = flush_lines;
  Step invalidate = flush_lines;
};

// CPUID leaf 7: EBX bit 23 is clflushopt, bit 24 clwb.
Steps chosen() {
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  Steps steps;
  if ((b >> 23 & 1) != 0) steps.write_back = steps.invalidate = drop_lines;
  if ((b >> 24 & 1) != 0) steps.write_back = keep_lines;
  return steps;
}

// Orders the flushes before what follows; loads, too, must not run ahead of an invalidation.
void fence() { _mm_mfence(); }

std::size_t line_bytes() { return 64; }

#elif defined(__aarch64__)

void keep_lines(std::uintptr_t p, std::uintptr_t end, std::size_t line) {
  for (; p < end; p += line) __asm__ volatile("dc cvac, %0" ::"r"(p) : "memory");
}

void drop_lines(std::uintptr_t p, std::uintptr_t end, std::size_t line) {
  for (; p < end; p += line) __asm__ volatile("dc civac, %0" ::"r"(p) : "memory");
}

struct Steps {
  Step write_back = keep_lines;
  Step invalidate = drop_lines;
};

Steps chosen() { return {}; }

void fence() { __asm__ volatile("dsb sy" ::: "memory"); }

// CTR_EL0.DminLine: log2 of the words of the smallest data line.
std::size_t line_bytes() {
  std::uint64_t ctr = 0;
  __asm__("mrs %0, ctr_el0" : "=r"(ctr));
  return std::size_t{4} << (ctr >> 16 & 15);
}

#else
#error "cache lines are flushed on x86-64 and arm64"
#endif

const Steps& steps() {
  static const Steps found = chosen();
  return found;
}

std::uint64_t each_line(Range memory, std::span<const std::uint64_t> offsets,
                        std::span<const std::uint64_t> lengths, Step step) {
  if (offsets.size() != lengths.size()) {
    throw std::invalid_argument("as many offsets as lengths are needed");
  }
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] > memory.size || lengths[i] > memory.size - offsets[i]) {
      throw std::out_of_range("block " + std::to_string(i) + " leaves the memory");
    }
  }
  const std::size_t line = cache_line_bytes();
  const auto base = reinterpret_cast<std::uintptr_t>(memory.data);
  std::uint64_t lines = 0;
  fence();  // what was written before is in the lines by now
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (lengths[i] == 0) continue;
    const std::uintptr_t first = (base + offsets[i]) & ~std::uintptr_t{line - 1};
    const std::uintptr_t end = base + offsets[i] + lengths[i];
    step(first, end, line);
    lines += (end - first + line - 1) / line;
  }
  fence();
  return lines;
}

}  // namespace

std::size_t cache_line_bytes() {
  static const std::size_t bytes = line_bytes();
  return bytes;
}

std::uint64_t write_back(Range memory, std::span<const std::uint64_t> offsets,
                         std::span<const std::uint64_t> lengths) {
  return each_line(memory, offsets, lengths, steps().write_back);
}

std::uint64_t invalidate(Range memory, std::span<const std::uint64_t> offsets,
                         std::span<const std::uint64_t> lengths) {
  return each_line(memory, offsets, lengths, steps().invalidate);
}

}  // namespace moonpool
