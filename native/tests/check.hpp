// The smallest test runner that serves: tests register themselves, the first failed check ends
// the process with its place and values. One TEST_MAIN() per file; an argument selects by name.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace moonpool::check {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> registered;
  return registered;
}

struct Registrar {
  Registrar(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

// Ends at once, without destructors: a thread of the failed test may still be running.
[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

template <class T>
std::string shown(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_arithmetic_v<T>) {
    out << +value;
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << "?";
  }
  return out.str();
}

template <class A, class B>
bool equal(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    return std::cmp_equal(+a, +b);  // CHECK_EQ(size, 3) must not warn about signs
  } else {
    return a == b;
  }
}

template <class A, class B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (!equal(a, b)) fail(file, line, std::string(text) + ": " + shown(a) + " != " + shown(b));
}

inline int run_all(int argc, char** argv) {
  int ran = 0;
  for (const Case& one : cases()) {
    if (argc > 1 && std::strstr(one.name, argv[1]) == nullptr) continue;
    std::printf("%s\n", one.name);
    std::fflush(stdout);
    one.run();
    ran++;
  }
  std::printf("%d passed\n", ran);
  return ran > 0 ? 0 : 1;
}

}  // namespace moonpool::check

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) ::moonpool::check::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_EQ(a, b) ::moonpool::check::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)

#define CHECK_THROWS(expression, error)                                               \
  do {                                                                                \
    bool thrown = false;                                                              \
    try {                                                                             \
      (void)(expression);                                                             \
    } catch (const error&) {                                                          \
      thrown = true;                                                                  \
    }                                                                                 \
    if (!thrown) ::moonpool::check::fail(__FILE__, __LINE__, "throws: " #expression); \
  } while (false)

#define TEST(name)                                                                \
  static void test_##name();                                                      \
  static const ::moonpool::check::Registrar registrar_##name{#name, test_##name}; \
  static void test_##name()

#define TEST_MAIN() \
  int main(int argc, char** argv) { return ::moonpool::check::run_all(argc, argv); }
