// Mutex of a pool.
#pragma once

#include <mutex>

namespace forebay {

// Note [The GIL is the mutex of pools]
// FOREBAY_CALLERS_HOLD_GIL is defined for the extension module: its calls into a pool hold the GIL, and no pool calls
// back, so that no other thread uses it and the mutex would only cost time. The tables of call stacks and the steps
// that must not be interrupted rely on the GIL as well. The extension modules therefore do not declare support for
// free-threaded Python, which then enables the GIL when it imports them; a call into a pool without the GIL would be a
// data race. The tests of the core alone use std::mutex. Rejected: the mutex as well, which takes a quarter of a cached
// allocation and its free.
// Test: tests/house/test_native.py::test_modules_do_not_declare_support_for_free_threaded_python
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
