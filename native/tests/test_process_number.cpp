// The number of this process, and of its children.
#include "process_number.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include "check.hpp"

using namespace moonpool;

TEST(a_child_has_its_own_number) {
  const std::uint64_t ours = process_number();
  CHECK_EQ(process_number(), ours);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(process_number() != ours ? 0 : 1);
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(process_number(), ours);
}

TEST_MAIN()
