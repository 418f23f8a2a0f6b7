// One entry of a pool's history.
#pragma once

#include <cstdint>

namespace forebay {

// As snapshot/model.py.
enum class Action : uint32_t { Take = 1, Give, Given, Reserve, Release, Oom, Map, Unmap, Look, Annotate };

struct Entry {
  uint64_t time_ns, address, nbytes, queue;
  uint32_t stack;
  Action action;
  uint32_t home, note;
};
static_assert(sizeof(Entry) == 48, "snapshot/model.py reads entries of 48 bytes");

}  // namespace forebay
