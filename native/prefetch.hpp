// Asks for memory before it is needed.
#pragma once

namespace moonpool {

// GCC 12 takes a function that does nothing but __builtin_prefetch for one without any effect, and
// drops its calls before they are inlined. It does not look into the empty statement.
inline void prefetch(const void* at) {
  __builtin_prefetch(at);
  asm volatile("");
}

}  // namespace moonpool
