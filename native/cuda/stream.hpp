// A stream of NVIDIA's driver and its ticks: events that are recorded in the stream and reused after they are reached.
// The driver's functions are called through pointers, so neither its headers nor its library is needed to build this.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "cuda/work_log.hpp"

namespace forebay::cuda {

using Handle = void*;  // of a context, a stream or an event
using Result = int;
using Callback = void (*)(void*);
using Work = int (*)(void*);  // a native function that a stream executes; 0 or the code of its failure
constexpr int kAllDevices = -1, kNoDevice = -2;
constexpr Result kSuccess = 0, kInvalidValue = 1, kNotReady = 600;

// Sizes of a launch of a kernel.
struct Launch {
  unsigned grid[3], block[3], shared;
};

struct Functions {
  Result (*ctx_get_current)(Handle*);
  Result (*ctx_push_current)(Handle);
  Result (*ctx_pop_current)(Handle*);
  Result (*event_create)(Handle*, unsigned);
  Result (*event_destroy)(Handle);
  Result (*event_record)(Handle, Handle);
  Result (*event_query)(Handle);
  Result (*event_elapsed_time)(float*, Handle, Handle);
  Result (*stream_wait_event)(Handle, Handle, unsigned);
  Result (*stream_query)(Handle);
  Result (*memcpy_async)(uint64_t, uint64_t, size_t, Handle);
  Result (*memset_async)(uint64_t, unsigned char, size_t, Handle);
  Result (*launch_host_func)(Handle, Callback, void*);
  Result (*exchange_capture_mode)(int*);
  Result (*launch_kernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                          void**);
  Result (*pointer_get_attribute)(void*, int, uint64_t);
  Result (*graph_launch)(Handle, Handle);
};

// Permits calls that a capture cannot observe until the end of the scope. Otherwise they would fail, and invalidate the
// captures of all threads: queries of events do not change what is captured.
class Relaxed {
 public:
  explicit Relaxed(const Functions& driver) : driver_(driver) { result = driver.exchange_capture_mode(&mode_); }
  ~Relaxed() {
    if (result == kSuccess) driver_.exchange_capture_mode(&mode_);
  }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

  Result result;

 private:
  const Functions& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then that of the thread
};

// Makes a context current until the end of the scope, unless it is.
class Current {
 public:
  Current(const Functions& driver, Handle context) : driver_(driver) {
    Handle current = nullptr;
    result = driver.ctx_get_current(&current);
    if (result != kSuccess || current == context) return;
    result = driver.ctx_push_current(context);
    pushed_ = result == kSuccess;
  }
  ~Current() {
    Handle popped;
    if (pushed_) driver_.ctx_pop_current(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  Result result;

 private:
  const Functions& driver_;
  bool pushed_ = false;
};

inline Result query_event(const Functions& driver, Handle event) {
  const Relaxed relaxed(driver);
  return relaxed.result ? relaxed.result : driver.event_query(event);
}

// A queued native function. The code of the first failure is kept.
struct NativeCall {
  Work function;
  void* argument;
  std::shared_ptr<std::atomic<int>> failure;  // of the stream that reports it
  bool repeated;                              // by launches of a graph, which owns the call
};

// Lets another stream report the failures of a call, which may be running.
inline void report_to(NativeCall* call, const std::shared_ptr<std::atomic<int>>& failure) {
  std::atomic_store(&call->failure, failure);
}

inline void run_native_call(void* argument) {
  auto* const call = static_cast<NativeCall*>(argument);
  int none = 0;
  if (const int code = call->function(call->argument))
    std::atomic_load(&call->failure)->compare_exchange_strong(none, code);
  if (!call->repeated) delete call;
}

// The event of a tick that is not known to be reached.
struct Tick {
  int64_t number;
  Handle event;
  bool timed;  // the event has a time
};

// Every method may be called by several threads, without the GIL: the driver blocks while a stream has no room for
// more work, and a host function in that stream may need the GIL.
class Stream {
 public:
  void open(const Functions* driver, Handle context, Handle stream) {
    driver_ = driver;
    context_ = context;
    stream_ = stream;
  }

  Result copy(uint64_t to, uint64_t from, size_t bytes) {
    const Current current(*driver_, context_);
    if (current.result) return current.result;
    const Piece piece(log(), ++work_);
    return driver_->memcpy_async(to, from, bytes, stream_);
  }

  Result fill(uint64_t to, unsigned char byte, size_t bytes) {
    const Current current(*driver_, context_);
    if (current.result) return current.result;
    const Piece piece(log(), ++work_);
    return driver_->memset_async(to, byte, bytes, stream_);
  }

  // A function that is not repeated is executed once at most, and its times are logged.
  Result launch(Callback function, void* argument, bool repeated) {
    const Current current(*driver_, context_);
    if (current.result) return current.result;
    const int64_t number = ++work_;
    const std::shared_ptr<WorkLog> own = repeated ? nullptr : log();
    if (!own) return driver_->launch_host_func(stream_, function, argument);
    own->add(number);
    auto call = std::make_unique<TimedCall>(TimedCall{function, argument, own, number});
    const Result result = driver_->launch_host_func(stream_, TimedCall::run, call.get());
    if (!result) static_cast<void>(call.release());
    return result;
  }

  // `arguments` has the address of each argument. The driver copies them.
  Result launch_kernel(Handle function, const Launch& launch, void** arguments) {
    const Current current(*driver_, context_);
    if (current.result) return current.result;
    const auto& [grid, block, shared] = launch;
    const Piece piece(log(), ++work_);
    return driver_->launch_kernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream_,
                                  arguments, nullptr);
  }

  // Launches an executable graph.
  Result launch_graph(Handle graph) {
    const Current current(*driver_, context_);
    if (current.result) return current.result;
    const Piece piece(log(), ++work_);
    return driver_->graph_launch(graph, stream_);
  }

  // Logs the times of later work for as long as the result lives.
  std::shared_ptr<WorkLog> start_log(int64_t most) {
    const std::lock_guard<std::mutex> lock(log_mutex_);
    std::shared_ptr<WorkLog> log = log_.lock();
    if (!log) log_ = log = Activities::get().make_log();
    log->keep(most);
    logged_ = true;
    return log;
  }

  // Number of the last piece of work, also of one that the driver rejected.
  int64_t last_work() const { return work_; }

  // Sets `device` to the device whose kernels can access the memory at an address: kAllDevices for pinned and managed
  // memory, kNoDevice for other memory of the host.
  Result memory_device(uint64_t address, int* device) {
    constexpr int kMemoryType = 2, kIsManaged = 8, kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_
    constexpr unsigned kHost = 1;                                       // CU_MEMORYTYPE_HOST
    const Current current(*driver_, context_);
    if (current.result) return current.result;
    unsigned type = 0, managed = 0;
    Result result = driver_->pointer_get_attribute(&type, kMemoryType, address);
    *device = kNoDevice;
    if (result) return result == kInvalidValue ? kSuccess : result;
    *device = kAllDevices;
    if (type == kHost) return kSuccess;
    if ((result = driver_->pointer_get_attribute(&managed, kIsManaged, address)) || managed) return result;
    return driver_->pointer_get_attribute(device, kDeviceOrdinal, address);
  }

  Result elapsed(Handle start, Handle end, float* milliseconds) {
    const Current current(*driver_, context_);
    return current.result ? current.result : driver_->event_elapsed_time(milliseconds, start, end);
  }

  Result query() {
    const Current current(*driver_, context_);
    const Relaxed relaxed(*driver_);
    if (relaxed.result) return relaxed.result;
    return current.result ? current.result : driver_->stream_query(stream_);
  }

  // Records the next tick. The caller owns the event of a mark, and gives it back.
  Result signal(bool mark, Tick* tick) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Current current(*driver_, context_);
    if (current.result) return current.result;
    Handle event;
    if (const Result failed = take_event(mark, &event)) return failed;
    if (const Result failed = driver_->event_record(event, stream_)) {
      free_[mark].push_back(event);
      return failed;
    }
    *tick = {++last_, event, mark};
    pending_.push_back(*tick);
    if (mark) shared_.insert(event);
    return kSuccess;
  }

  // Sets `tick` to the last tick that is reached.
  Result reached(int64_t* tick) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return poll(tick);
  }

  // Waits for a tick, at most for some time. The calling thread is busy at first, as in the driver's own waits.
  Result wait(int64_t tick, int64_t nanoseconds, int64_t* last_reached);

  // Makes later work of another stream wait for a tick.
  Result make_wait(Stream& other, int64_t tick) {
    const std::lock_guard<std::mutex> lock(mutex_);  // until the end, the event is not reused
    if (tick <= reached_ || tick > last_) return kSuccess;
    const Handle event = pending_[static_cast<size_t>(tick - pending_.front().number)].event;
    const Current current(*other.driver_, other.context_);
    return current.result ? current.result : other.driver_->stream_wait_event(other.stream_, event, 0);
  }

  // Both are read without the lock, which a thread may hold while the driver blocks.
  int64_t last() const { return last_; }
  bool closed() const { return closed_; }

  // Accepts the event of a mark. Makes no call of the driver and does not wait for one, as a destructor calls it.
  void give_back(Handle event) {
    const std::lock_guard<std::mutex> lock(given_mutex_);
    given_.push_back(event);
  }

  // Destroys all events; all ticks count as reached. Errors are ignored: the context may be lost.
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    reached_ = last_;
    pending_.clear();
    shared_.clear();
    if (driver_) {
      const Current current(*driver_, context_);
      for (const Handle event : events_) driver_->event_destroy(event);
    }
    events_.clear();
    for (auto& events : free_) events.clear();
    closed_ = true;
  }

 private:
  static constexpr unsigned kDisableTiming = 2;  // flag of an event

  std::shared_ptr<WorkLog> log() {
    if (!logged_) return nullptr;
    const std::lock_guard<std::mutex> lock(log_mutex_);
    std::shared_ptr<WorkLog> log = log_.lock();
    logged_ = log != nullptr;
    return log;
  }

  Result take_event(bool timed, Handle* event) {
    accept_given();
    if (!free_[timed].empty()) {
      *event = free_[timed].back();
      free_[timed].pop_back();
      return kSuccess;
    }
    if (const Result failed = driver_->event_create(event, timed ? 0 : kDisableTiming)) return failed;
    events_.push_back(*event);
    return kSuccess;
  }

  // Moves events of deleted marks to the free ones, or leaves them to the pending ticks that still need them.
  void accept_given() {
    std::vector<Handle> given;
    {
      const std::lock_guard<std::mutex> lock(given_mutex_);
      given.swap(given_);
    }
    for (const Handle event : given) {
      if (!shared_.erase(event) && !closed_) free_[1].push_back(event);
    }
  }

  Result poll(int64_t* tick) {
    *tick = reached_;
    if (pending_.empty()) return kSuccess;
    const Relaxed relaxed(*driver_);
    if (relaxed.result) return relaxed.result;
    while (!pending_.empty()) {
      const Tick& first = pending_.front();
      const Result result = driver_->event_query(first.event);
      if (result == kNotReady) break;
      if (result) return result;
      *tick = reached_ = first.number;
      if (!shared_.erase(first.event)) free_[first.timed].push_back(first.event);
      pending_.pop_front();
    }
    return kSuccess;
  }

  const Functions* driver_ = nullptr;
  Handle context_ = nullptr, stream_ = nullptr;
  std::mutex mutex_;                      // of everything below but `given_`
  std::deque<Tick> pending_;              // with consecutive numbers
  std::unordered_set<Handle> shared_;     // events of both a pending tick and a mark; the last one frees the event
  std::vector<Handle> free_[2], events_;  // without and with times; all
  std::atomic<int64_t> last_{0};
  int64_t reached_ = 0;
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> work_{0};  // pieces
  std::atomic<bool> logged_{false};
  std::mutex log_mutex_;
  std::weak_ptr<WorkLog> log_;
  std::mutex given_mutex_;
  std::vector<Handle> given_;
};

inline Result Stream::wait(int64_t tick, int64_t nanoseconds, int64_t* last_reached) {
  constexpr int64_t kBusy = 200'000, kPause = 20'000;  // nanoseconds
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const auto since = [start = time](timespec& now) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec - start.tv_sec} * 1'000'000'000 + (now.tv_nsec - start.tv_nsec);
  };
  while (true) {
    const Result failed = reached(last_reached);
    if (failed || *last_reached >= tick) return failed;
    const int64_t waited = since(time);
    if (waited >= nanoseconds) return kNotReady;
    if (waited < kBusy) {
      sched_yield();
    } else {
      usleep(kPause / 1000);
    }
  }
}

}  // namespace forebay::cuda
