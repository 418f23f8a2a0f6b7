// What lending memory to NumPy needs of the machine.
#pragma once

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace penstock {

// This thread is asking for more memory: what that allocates itself is not served. False: it was so already.
inline bool& in_ladder() {
  thread_local bool inside = false;
  return inside;
}
inline bool enter_ladder() { return !std::exchange(in_ladder(), true); }
inline void leave_ladder() { in_ladder() = false; }

inline size_t usable_size(void* memory) { return malloc_usable_size(memory); }

// From here on it is cheaper to let the kernel bring zero pages when they are touched (docs/benchmarks.md).
constexpr size_t kZeroByPages = size_t{4} << 20;

inline void zero(void* memory, size_t nbytes) {
  if (nbytes >= kZeroByPages) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(memory), end = begin + nbytes;
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0) {
      memset(memory, 0, first - begin);
      memset(reinterpret_cast<void*>(last), 0, end - last);
      return;
    }
  }
  memset(memory, 0, nbytes);
}

}  // namespace penstock
