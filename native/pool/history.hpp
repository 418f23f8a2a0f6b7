// Entry of a pool's memory history.
#pragma once

#include <cstdint>

namespace forebay {

// Numbered as in snapshot/model.py.
enum class Action : uint32_t {
  Alloc = 1,
  FreeRequested,
  FreeCompleted,
  Reserve,
  Release,
  Oom,
  Map,
  Unmap,
  Snapshot,
  Annotate
};

struct Entry {
  uint64_t time_ns, address, nbytes, queue;
  uint32_t stack;
  Action action;
  uint32_t pool_number, note;
};
static_assert(sizeof(Entry) == 48, "snapshot/model.py reads entries of 48 bytes");

}  // namespace forebay
