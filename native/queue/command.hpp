// Commands of a queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>

#include "queue/worker.hpp"  // Function, Timeline

namespace forebay {

struct Copy {
  void* dst;
  const void* src;
  size_t nbytes;
};

struct Fill {
  void* dst;
  int byte;
  size_t nbytes;
};

struct DrawCommand {
  std::unique_ptr<char[]> packed;
};

struct StridedCopyCommand {
  std::unique_ptr<char[]> packed;
};

struct Program {
  std::unique_ptr<char[]> bytes;
  size_t nbytes;
};

struct Run {
  Function function;
  void* argument;
  bool host_call;
};

struct Signal {
  std::shared_ptr<Mark> mark;  // null for a signal without a timestamp
};

struct WaitFor {
  std::shared_ptr<Timeline> timeline;
  uint64_t tick;
};

using Command = std::variant<Copy, Fill, DrawCommand, StridedCopyCommand, Program, Run, Signal, WaitFor>;

}  // namespace forebay
