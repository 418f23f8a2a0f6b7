// One in-order queue on one native thread, which starts with the first work. Any thread may call any method.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "queue/log.hpp"
#include "base/timeline.hpp"

namespace forebay {

using Function = int (*)(void*);  // 0 is success; must not throw

// The first failure since the last take_failure(); work behind it has run all the same.
struct Failure {
  enum Cause { None, Code, HostCall, LostQueue };  // LostQueue: it waited for ticks that another queue discarded
  Cause cause = None;
  int code = 0;       // what the function returned
  uint64_t tick = 0;  // the first tick behind the failed command
};

// For a function that a queue runs, and that waits: from now on, or until now, it touches no memory
// and is not busy.
void stand_aside(bool on) noexcept;

// What is special about a queue of an emulated device.
enum Watch : int {
  kCounted = 1,  // copies, fills and draws throw Uncounted where they would touch memory that is not counted
  kGuarded = 2,  // its thread opens guarded memory while it works with it
};

class Worker {
 public:
  // The handle is its name in messages. A lower priority is more urgent, a hint: the thread's niceness, kept within
  // -5..5; a refusal to raise it is ignored.
  explicit Worker(uint64_t handle = 0, int priority = 0, int watch = 0);
  // Lets the thread finish what is queued, without waiting for it.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Work is refused with std::invalid_argument after close() and in a forked child, and with std::system_error if no
  // thread can start.
  void copy(void* dst, const void* src, size_t nbytes);
  void fill(void* dst, int byte, size_t nbytes);
  void draw(const void* packed, size_t nbytes);    // a Draw and its axes; std::invalid_argument if they are none
  void program(const void* bytes, size_t nbytes);  // Steps; std::invalid_argument if they make no program
  // A host-language call that is discarded gives its argument back, through close(). One refused has never had it.
  void run(Function function, void* argument, bool host_call = false);
  uint64_t signal();             // "reach the next tick here"; ticks count from 1
  std::shared_ptr<Mark> mark();  // a signal, timed
  // Signals aside, how many pieces of work it was given: the number of the last one.
  uint64_t given() const noexcept;
  std::shared_ptr<Log> log(size_t most);  // of all it is given from now on, as long as somebody has it
  // False where it could never end: for a tick not signalled yet (so no circle can be built), or lost.
  bool wait_for(const std::shared_ptr<Timeline>& other, uint64_t tick);

  // Until resume(), once for each pause, its thread begins nothing. True when it is at nothing that may touch memory:
  // waiting does not; nor does the queue's own thread, where it asks. False: it still is, and needs a resume() as well.
  bool pause(int64_t timeout_ns);
  void resume();

  const std::shared_ptr<Timeline>& timeline() const noexcept { return timeline_; }
  uint64_t reached() const noexcept { return timeline_->reached(); }
  bool idle() const;                        // all that was queued is done
  std::vector<int64_t> busy() const;        // as BusyMeter::read; to wait for another queue is no work
  bool calls_pending() const noexcept;      // a host-language call is queued or running: spinning may be in its way
  bool soon(uint64_t tick) const noexcept;  // reached, or within a spin that is in nobody's way; takes no lock
  Wait wait(uint64_t tick, int64_t timeout_ns = kForever);  // spins, then sleeps. Never, too, on the queue's own thread

  bool failed() const noexcept;
  Failure take_failure();

  // Takes no more work, finishes what is queued and joins; past the limit it goes on, and can be asked again. Never: on
  // the queue's own thread (which cannot wait for itself), in a forked child, after a close() that discarded.
  Wait finish(int64_t timeout_ns = kForever);
  // The same, but past the limit it discards the rest and ends the timeline. True: all was done. Twice is once.
  // `dropped` gets the arguments of the host-language calls that it discards.
  bool close(int64_t timeout_ns = kForever, std::vector<void*>* dropped = nullptr);
  bool closed() const noexcept;
  // For a forked child: forgets the thread and all it holds, touches no lock. Without it a child finds out by itself.
  void abandon() noexcept { abandoned_ = true; }
  bool alive() const noexcept { return !abandoned_ && !timeline_->forked(); }  // the thread is this process's own

 private:
  struct State;
  State& open() const;                                         // refuses in a forked child
  State& open_to_write(const void* dst, size_t nbytes) const;  // and counts
  const bool counted_;
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
  std::atomic<bool> abandoned_{false};
};

}  // namespace forebay
