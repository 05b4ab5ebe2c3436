// Threads that help one caller with work in parts. The caller takes parts like everybody else, so a
// helper that wakes late finds less to do, or nothing; nobody spins, and nothing waits for a helper
// that has not begun. What a part does must not throw.
#pragma once
#include <cstddef>
#include <functional>

#include "owner_process.hpp"

namespace moonpool {

class Helpers {
 public:
  using Work = std::function<void(std::size_t part)>;

  // `count` threads beside the caller's own.
  explicit Helpers(std::size_t count);
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  std::size_t count() const { return count_; }
  // Calls `work` once for each part below `parts`; what they wrote is there for the caller when it
  // returns. A second caller meanwhile does its parts alone, and so does a forked child.
  void run(std::size_t parts, const Work& work);

 private:
  class Crew;

  const std::size_t count_;
  OfProcess<Crew> crew_;
};

}  // namespace moonpool
