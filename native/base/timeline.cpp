#include "base/timeline.hpp"

#include <thread>

#include "base/process.hpp"

namespace forebay {
int64_t steady_nanos() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void yield_core() noexcept { std::this_thread::yield(); }

void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Timeline::Timeline(uint64_t reached) noexcept
    : generation_(fork_generation()), signalled_(reached), reached_(reached) {}

bool Timeline::forked() const noexcept { return generation_ != fork_generation(); }

bool Timeline::spin(uint64_t tick, int64_t nanos) const noexcept {
  return spin_until(nanos, [&] { return reached() >= tick || ended(); }) && reached() >= tick;
}

Wait Timeline::wait(uint64_t tick, int64_t timeout_ns, const std::atomic<bool>* cancel) {
  const auto over = [&] { return reached_.load() >= tick || ended() || (cancel && cancel->load()); };
  const auto result = [&] { return reached() >= tick ? Wait::Reached : over() ? Wait::Never : Wait::TimedOut; };
  if (reached() < tick && (tick > signalled() || ended())) return Wait::Never;
  if (spin_until(timeout_ns < 0 ? kSpinNanos : std::min(timeout_ns, kSpinNanos), over)) return result();
  // Counted before `over` reads, as advance() reads the count after it stores: at least one side sees the other.
  sleepers_.fetch_add(1);
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(changed_, lock, timeout_ns, over);
  sleepers_.fetch_sub(1);
  return result();
}

void Timeline::advance() {
  reached_.fetch_add(1);
  if (sleepers_.load() > 0) wake_waiters();
}

void Timeline::end() {
  ended_ = true;
  wake_waiters();
}

void Timeline::wake_waiters() {
  mutex_.lock();  // a waiter between its check and its sleep must not miss the notification
  mutex_.unlock();
  changed_.notify_all();
}

}  // namespace forebay
