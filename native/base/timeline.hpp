// Timeline of a queue: the ticks it has reached, and waiting for one. Shared, so that a waiter may outlive the queue.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

namespace forebay {

constexpr int64_t kForever = -1;        // no time limit, as is any negative number
constexpr int64_t kSpinNanos = 50'000;  // how long a waiter polls before it sleeps: about the cost of one wake-up
constexpr size_t kCacheLine = 64;       // data that different threads write often is kept on separate lines

// Never: the tick was not signalled, its queue discarded the work, or the queue belongs to the parent process.
enum class Wait { Reached, TimedOut, Never };

int64_t steady_nanos() noexcept;
void yield_core() noexcept;
void cpu_pause() noexcept;  // for polling loops

// Polls `ready` until it returns true or `nanos` have passed. Reads the clock only every 32 polls.
template <class Ready>
bool spin_until(int64_t nanos, Ready ready) {
  if (ready()) return true;
  if (nanos <= 0) return false;
  const int64_t end = steady_nanos() + nanos;
  do {
    for (int i = 0; i < 32; ++i, cpu_pause()) {
      if (ready()) return true;
    }
    yield_core();  // the thread waited for may need this core
  } while (steady_nanos() < end);
  return ready();
}

// Waits until `ready` returns true; a negative limit means none.
template <class Ready>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, int64_t limit, Ready ready) {
  constexpr int64_t kHalf = std::numeric_limits<int64_t>::max() / 2;  // now + limit must not overflow
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(std::min(limit, kHalf));
  return limit < 0 ? (changed.wait(lock, ready), true) : changed.wait_until(lock, end, ready);
}

// A tick and the time at which its queue reached it.
struct Mark {
  uint64_t tick = 0;
  std::atomic<int64_t> nanoseconds{0};  // on the steady clock; 0 until reached
};

// Note [Ticks]
// A queue counts its progress in ticks, which are signalled in order and reached in order: events, waits between
// queues, deferred frees and times are comparisons of two numbers on every backend. Only a tick that was signalled can
// be waited for, so queues cannot wait for each other in a circle. A timeline ends when its queue discards signalled
// ticks, and in a forked child, where the queue's thread does not exist: waiting for a tick that is not reached by then
// returns Never, and no waiter is left behind. Rejected: an object with a lock for each event.
// Test: native/tests/test_worker.cpp::waiting_for_unsignalled_tick_is_rejected
class Timeline {
 public:
  explicit Timeline(uint64_t reached = 0) noexcept;  // ticks up to this one are reached
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  uint64_t reached() const noexcept { return reached_.load(std::memory_order_acquire); }
  uint64_t signalled() const noexcept { return signalled_.load(std::memory_order_acquire); }
  bool forked() const noexcept;
  bool ended() const noexcept { return ended_.load() || forked(); }

  bool spin(uint64_t tick, int64_t nanos) const noexcept;
  Wait wait(uint64_t tick, int64_t timeout_ns, const std::atomic<bool>* cancel = nullptr);

  // For the queue only.
  void signal() noexcept { signalled_.fetch_add(1); }
  void advance();  // marks the next tick as reached
  void end();
  void wake_waiters();  // so that they check their `cancel` again

 private:
  const uint64_t generation_;
  std::atomic<uint64_t> signalled_{0};
  alignas(kCacheLine) std::atomic<uint64_t> reached_{
      0};  // written by the queue's thread; the fields above by its callers
  std::atomic<bool> ended_{false};
  std::atomic<int> sleepers_{0};  // advance() locks the mutex only if there are any
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace forebay
