// A queue's log, for ctypes.
#include "queue/log.hpp"

#include <exception>
#include <tuple>

#include "base/exported.hpp"
#include "queue/worker.hpp"

using forebay::Log;
using Held = std::shared_ptr<Log>;

// Null where there is no memory for it, and in a forked child.
EXPORTED Held* forebay_log(forebay::Worker* worker, size_t most) {
  try {
    return new Held(worker->log(most));
  } catch (const std::exception&) {
    return nullptr;
  }
}

EXPORTED void forebay_log_times(const Held* log, uint64_t number, int64_t* times) {
  std::tie(times[0], times[1]) = (*log)->times(number);
}

EXPORTED void forebay_log_drop(Held* log) { delete log; }
