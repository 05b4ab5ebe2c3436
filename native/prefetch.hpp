// Asks for memory before it is needed.
#pragma once
#include <cstddef>

namespace moonpool {

// GCC 12 takes a function that does nothing but __builtin_prefetch for one without any effect, and
// drops its calls before they are inlined. It does not look into the empty statement.
inline void prefetch(const void* at) {
  __builtin_prefetch(at);
  asm volatile("");
}

// Of a block of which all lines will be read in a while: into the second cache, which can wait for
// more of them at a time than the first.
inline void prefetch_block(const void* at, std::size_t size) {
  constexpr std::size_t kLine = 64;
  for (std::size_t line = 0; line < size; line += kLine) {
    __builtin_prefetch(static_cast<const char*>(at) + line, 0, 2);
    asm volatile("");
  }
}

}  // namespace moonpool
