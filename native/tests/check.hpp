// A test is TEST(its_story) { ... CHECK(what holds); }; check::run_all() runs every one of the program and counts.
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

// Tests whose name contains `only` (all by default), each to its first failed CHECK. Returns main's exit status.
inline int run_all(const char* only = "") {
  int passed = 0, failed = 0;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(only) == std::string::npos) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);  // the name must stand there when a test crashes or hangs
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

// What the call says when it refuses; empty when it does not.
template <class Call>
std::string refusal(Call call) {
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

// Only on the test's own thread: it throws.
#define CHECK(condition) \
  (static_cast<bool>(condition) ? void() : throw check::Failed(__FILE__ ":" CHECK_TEXT(__LINE__) ": " #condition))

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name(#name, name); \
  static void name()
