// The ticks a queue has reached, and the means to wait for one. Shared, so that a waiter outlives the queue safely.
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

constexpr int64_t kForever = -1;        // a time limit that never comes; any negative number will do
constexpr int64_t kSpinNanos = 50'000;  // how long a waiter polls before it sleeps: about the price of one wake-up
constexpr size_t kCacheLine = 64;       // what one thread writes often shares no line with what another does

enum class Wait { Reached, TimedOut, Never };  // Never: not signalled, its queue lost the work or lives across a fork

int64_t steady_nanos() noexcept;
void give_way() noexcept;  // lets another thread have this core
void relax() noexcept;     // one step of a polling loop

// Polls `ready` until it holds or `nanos` have passed; reads the clock only now and then.
template <class Ready>
bool spin_until(int64_t nanos, Ready ready) {
  if (ready()) return true;
  if (nanos <= 0) return false;
  const int64_t end = steady_nanos() + nanos;
  do {
    for (int i = 0; i < 32; ++i, relax()) {
      if (ready()) return true;
    }
    give_way();  // whom we wait for may be waiting for this very core
  } while (steady_nanos() < end);
  return ready();
}

// Waits until `ready`; without a limit when that is negative.
template <class Ready>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, int64_t limit, Ready ready) {
  constexpr int64_t kHalf = std::numeric_limits<int64_t>::max() / 2;  // the sum with now must not overflow
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(std::min(limit, kHalf));
  return limit < 0 ? (changed.wait(lock, ready), true) : changed.wait_until(lock, end, ready);
}

// A tick and the moment at which its queue reached it.
struct Mark {
  uint64_t tick = 0;
  std::atomic<int64_t> nanoseconds{0};  // of the steady clock; 0 until reached
};

// Ticks are promised in order and reached in order. A timeline ends when its queue discards promised ticks, and for a
// forked child, where the queue's thread does not exist: waiting for a tick not reached by then answers Never.
class Timeline {
 public:
  Timeline() noexcept;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  uint64_t reached() const noexcept { return reached_.load(std::memory_order_acquire); }
  uint64_t promised() const noexcept { return promised_.load(std::memory_order_acquire); }
  bool forked() const noexcept;
  bool ended() const noexcept { return ended_.load() || forked(); }

  bool spin(uint64_t tick, int64_t nanos) const noexcept;
  Wait wait(uint64_t tick, int64_t timeout_ns, const std::atomic<bool>* give_up = nullptr);

  // For the queue alone.
  void promise() noexcept { promised_.fetch_add(1); }
  void advance();  // the next tick is reached
  void end();
  void nudge();  // waiters look at their `give_up` again

 private:
  const uint64_t generation_;
  std::atomic<uint64_t> promised_{0};
  alignas(kCacheLine) std::atomic<uint64_t> reached_{0};  // the queue's thread writes here, its callers above
  std::atomic<bool> ended_{false};
  std::atomic<int> sleepers_{0};  // advance() takes the mutex only when there are some
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace forebay
