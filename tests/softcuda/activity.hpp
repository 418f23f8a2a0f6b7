// What the software driver reports to the stand-in for CUPTI.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace softcuda {

struct ActivityHooks {
  // Returns the number of a call that queues work, for the calling thread. `function` is the driver's callback id.
  uint32_t (*called)(uint32_t function);
  void (*executed)(CUgraphNodeType type, uint32_t call, int64_t begin, int64_t end);
};

extern "C" void softcuda_set_activity_hooks(const ActivityHooks* hooks);  // null: report nothing

}  // namespace softcuda
