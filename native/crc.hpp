#pragma once
#include <cstddef>
#include <cstdint>

namespace moonpool {
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t seed = 0);
}
