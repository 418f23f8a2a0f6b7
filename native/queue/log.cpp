// C functions for a queue's work log, called through ctypes.
#include "queue/log.hpp"

#include <exception>
#include <tuple>

#include "base/c_api.hpp"
#include "queue/worker.hpp"

using forebay::Log;
using LogHandle = std::shared_ptr<Log>;

// Returns null if memory is exhausted and in a forked child.
EXPORTED LogHandle* forebay_log(forebay::Worker* worker, size_t capacity) {
  try {
    return new LogHandle(worker->log(capacity));
  } catch (const std::exception&) {
    return nullptr;
  }
}

EXPORTED void forebay_log_times(const LogHandle* log, uint64_t number, int64_t* times) {
  std::tie(times[0], times[1]) = (*log)->times(number);
}

EXPORTED void forebay_log_drop(LogHandle* log) { delete log; }
