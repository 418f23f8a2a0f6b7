// One in-order queue on one native thread, which starts with the first work. Any thread may call any method.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "timeline.hpp"

namespace penstock {

using Function = int (*)(void*);  // 0 is success; must not throw
using Drop = void (*)(void*);

// The first failure since the last take_failure(); work behind it has run all the same.
struct Failure {
  enum Cause { None, Code, HostCall, LostQueue };  // LostQueue: it waited for ticks that another queue discarded
  Cause cause = None;
  int code = 0;       // what the function returned
  uint64_t tick = 0;  // the first tick behind the failed command
};

class Worker {
 public:
  // Lower is more urgent, a hint: the thread's niceness, kept within -5..5; a refusal to raise it is ignored.
  explicit Worker(int priority = 0);
  // Lets the thread finish what is queued, without waiting for it.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Work is refused (false, 0, null) after close() and in a forked child; std::system_error if no thread can start.
  bool copy(void* dst, const void* src, size_t nbytes);
  bool fill(void* dst, int byte, size_t nbytes);
  // Of function and drop exactly one is called with the argument, drop if the work is discarded; neither if refused.
  bool run(Function function, void* argument, Drop drop = nullptr, bool host_call = false);
  uint64_t signal();             // "reach the next tick here"; ticks count from 1
  std::shared_ptr<Mark> mark();  // a signal, timed
  // Also refused where it could never end: for a tick not signalled yet (so no circle can be built), or lost.
  bool wait_for(const std::shared_ptr<Timeline>& other, uint64_t tick);

  const std::shared_ptr<Timeline>& timeline() const noexcept { return timeline_; }
  uint64_t reached() const noexcept { return timeline_->reached(); }
  bool idle() const;                    // all that was queued is done
  bool calls_pending() const noexcept;  // a host-language call is queued or running: spinning may be in its way
  bool spin(uint64_t tick, int64_t nanos) const noexcept { return timeline_->spin(tick, nanos); }  // takes no lock
  Wait wait(uint64_t tick, int64_t timeout_ns = kForever);  // spins, then sleeps. Never, too, on the queue's own thread

  bool failed() const noexcept;
  Failure take_failure();

  // Takes no more work, finishes what is queued and joins; past the limit it goes on, and can be asked again. Never: on
  // the queue's own thread (which cannot wait for itself), in a forked child, after a close() that discarded.
  Wait finish(int64_t timeout_ns = kForever);
  // The same, but past the limit it discards the rest and ends the timeline. True: all was done. Twice is once.
  bool close(int64_t timeout_ns = kForever);
  bool closed() const noexcept;
  // For a forked child: forgets the thread and all it holds, touches no lock. Without it a child finds out by itself.
  void abandon() noexcept { abandoned_ = true; }
  bool alive() const noexcept { return !abandoned_ && !timeline_->forked(); }  // the thread is this process's own

 private:
  struct State;
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
  std::atomic<bool> abandoned_{false};
};

}  // namespace penstock
