// Minimal test framework: TEST(name) { ... CHECK(condition); } defines a test; check::run_all() runs all tests of the
// program.
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

// Runs the tests whose name contains `filter`, each up to its first failed CHECK. Returns main's exit status.
inline int run_all(const char* filter = "") {
  int passed = 0, failed = 0;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);  // so that the name is visible if the test crashes or hangs
    try {
      test.body();
      ++passed;
    } catch (const std::exception& error) {
      std::printf("  FAILED %s\n", error.what());
      ++failed;
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed || !passed;
}

// Returns the message of the std::logic_error that the call throws; empty if it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return {};
}

}  // namespace check

#define CHECK_TEXT_(line) #line
#define CHECK_TEXT(line) CHECK_TEXT_(line)

// Throws, so it must be used on the test's own thread.
#define CHECK(condition) \
  (static_cast<bool>(condition) ? void() : throw check::Failed(__FILE__ ":" CHECK_TEXT(__LINE__) ": " #condition))

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name(#name, name); \
  static void name()
