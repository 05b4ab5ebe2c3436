// Which process this is in a line of forks, without a system call: objects remember theirs, and a
// forked child leaves alone what its parent has.
#pragma once
#include <cstdint>

namespace moonpool {

// Unlike a process id it does not come again.
std::uint64_t process_number();

}  // namespace moonpool
