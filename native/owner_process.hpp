// Objects with threads, and forked children: a child has the object but none of the threads, so
// there is nothing to wake or to join, and a lock that one of them held stays locked for ever.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "process_number.hpp"

namespace moonpool {

// Owns what has threads, locks and conditions inside. A forked child does not destroy its copy: it
// would wait for threads, and unmap addresses, that are only its parent's.
template <class Threaded>
class OfProcess {
 public:
  explicit OfProcess(std::unique_ptr<Threaded> held) : held_(std::move(held)) {}
  OfProcess(const OfProcess&) = delete;
  OfProcess& operator=(const OfProcess&) = delete;
  ~OfProcess() {
    if (!usable()) [[maybe_unused]]
      auto* const leaked = held_.release();
  }

  // False in a forked child, which must not touch it.
  bool usable() const { return process_ == process_number(); }
  Threaded* operator->() const { return held_.get(); }

 private:
  std::unique_ptr<Threaded> held_;
  const std::uint64_t process_ = process_number();
};

}  // namespace moonpool
