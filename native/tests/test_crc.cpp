#include "check.hpp"
#include "crc.hpp"

TEST(crc32c_of_the_check_string) { CHECK_EQ(moonpool::crc32c("123456789", 9), 0xE3069283u); }

TEST_MAIN()
