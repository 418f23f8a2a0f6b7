// Mutex of a pool. Locking and unlocking a std::mutex takes a quarter of a cached allocation and its free.
#pragma once

#include <mutex>

namespace forebay {

// FOREBAY_CALLERS_HOLD_GIL is defined for the extension module: its calls into a pool hold the GIL, which the module
// needs in free-threaded Python as well (DESIGN.md), and no pool calls back. The GIL then is the pool's mutex.
#ifdef FOREBAY_CALLERS_HOLD_GIL
class PoolMutex {
 public:
  void lock() noexcept {}
  void unlock() noexcept {}
};
#else
using PoolMutex = std::mutex;
#endif

using PoolLock = std::lock_guard<PoolMutex>;

}  // namespace forebay
