// In-order queue with one native worker thread, which starts with the first work. All methods are thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/timeline.hpp"
#include "queue/log.hpp"

namespace forebay {

using Function = int (*)(void*);  // 0 is success; must not throw

constexpr int kLostWork = 125;  // ECANCELED: the work was pending when this process was forked, and is not done here

// First failure since the last take_failure(). Work after it has run regardless.
struct Failure {
  enum Cause { None, Code, HostCall, LostQueue };  // LostQueue: waited for ticks that another queue discarded
  Cause cause = None;
  int code = 0;       // what the function returned, or kLostWork
  uint64_t tick = 0;  // the first tick after the failed command
};

// Called by a function that a queue runs, around a wait: while suspended, the queue touches no memory and is not busy.
void set_suspended(bool on) noexcept;

// Memory checks of a queue of an emulated device.
enum MemoryChecks : int {
  kCounted = 1,  // work that would write untouched memory throws UncountedMemory, except programs and functions
  kGuarded = 2,  // the worker thread opens guarded memory while it works with it
};

class Worker {
 public:
  // `handle` identifies the queue in messages. `priority` is a hint: the thread's niceness, clamped to -5..5, where
  // lower is more urgent; failure to raise it is ignored.
  explicit Worker(uint64_t handle = 0, int priority = 0, int memory_checks = 0);
  // Does not wait: the thread finishes the queued work.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Submitting work throws std::invalid_argument after close() and in a forked child, and std::system_error if the
  // thread cannot start.
  void copy(void* dst, const void* src, size_t nbytes);
  void fill(void* dst, int byte, size_t nbytes);
  // A Draw, a StridedCopy or a program with all that follows; std::invalid_argument if it is invalid.
  void draw(const void* packed, size_t nbytes);
  void copy_strided(const void* packed, size_t nbytes);
  void program(const void* bytes, size_t nbytes);
  // `host_call`: a call into the host language. If it is discarded, close() returns its argument to the caller; if
  // submitting throws, the queue never owned the argument.
  void run(Function function, void* argument, bool host_call = false);
  uint64_t signal();             // queues a signal and returns its tick; ticks count from 1
  std::shared_ptr<Mark> mark();  // a signal with a timestamp
  // Returns the number of work items submitted so far, signals excluded: the number of the last one.
  uint64_t submitted() const noexcept;
  std::shared_ptr<Log> log(size_t capacity);  // of all later work, while the caller keeps it
  // Makes later work wait for another queue's tick. Returns false if the wait could never end: the tick was not
  // signalled yet, or is lost: Note [Ticks].
  bool wait_for(const std::shared_ptr<Timeline>& other, uint64_t tick);

  // Keeps the thread from starting work until resume() was called once per pause(). Returns true when no running work
  // can touch memory: a waiting thread cannot, nor can the queue's own thread if it is the caller. Returns false on
  // timeout, which needs a resume(), too.
  bool pause(int64_t timeout_ns);
  void resume();

  const std::shared_ptr<Timeline>& timeline() const noexcept { return timeline_; }
  uint64_t reached() const noexcept { return timeline_->reached(); }
  bool idle() const;                    // all queued work is done
  std::vector<int64_t> busy() const;    // as BusyMeter::read; waiting for another queue is not busy
  bool calls_pending() const noexcept;  // a host-language call is queued or running, which spinning may delay
  bool reached_soon(
      uint64_t tick) const noexcept;  // reached now or, without pending host calls, within a spin; lock-free
  Wait wait(uint64_t tick, int64_t timeout_ns = kForever);  // spins, then sleeps; also Never on the queue's own thread

  bool failed() const noexcept;
  Failure take_failure();

  // Accepts no more work, finishes the queued work and joins the thread. After TimedOut the work continues, and
  // finish() may be called again. Returns Never on the queue's own thread (which cannot wait for itself), in a forked
  // child, and after a close() that discarded work.
  Wait finish(int64_t timeout_ns = kForever);
  // As finish(), but discards the remaining work at the timeout and ends the timeline. Returns true if all work was
  // done. Idempotent. `dropped` receives the arguments of the discarded host-language calls.
  bool close(int64_t timeout_ns = kForever, std::vector<void*>* dropped = nullptr);
  bool closed() const noexcept;
  // For a forked child, while it has one thread: continues with all ticks reached and a thread of its own. Work that
  // was pending is dropped, which is recorded as a failure.
  void continue_in_child();
  bool alive() const noexcept { return !timeline_->forked(); }  // the thread belongs to this process

 private:
  struct State;
  State& own_state() const;                                      // throws in a forked child
  State& state_for_write(const void* dst, size_t nbytes) const;  // also throws UncountedMemory
  const bool counted_;
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive the Worker
};

}  // namespace forebay
