// The number of this process, and of its children.
#include <sys/wait.h>
#include <unistd.h>

#include "check.hpp"
#include "own_process.hpp"

using namespace moonpool;

TEST(a_child_has_its_own_number) {
  CHECK_EQ(own_process(), ::getpid());
  CHECK_EQ(own_process(), ::getpid());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(own_process() == ::getpid() ? 0 : 1);
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

TEST_MAIN()
