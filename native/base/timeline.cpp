#include "base/timeline.hpp"

#include <thread>

#include "base/process.hpp"

namespace forebay {
int64_t steady_nanos() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void give_way() noexcept { std::this_thread::yield(); }

void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Timeline::Timeline() noexcept : generation_(process_generation()) {}

bool Timeline::forked() const noexcept { return generation_ != process_generation(); }

bool Timeline::spin(uint64_t tick, int64_t nanos) const noexcept {
  return spin_until(nanos, [&] { return reached() >= tick || ended(); }) && reached() >= tick;
}

Wait Timeline::wait(uint64_t tick, int64_t timeout_ns, const std::atomic<bool>* give_up) {
  const auto over = [&] { return reached_.load() >= tick || ended() || (give_up && give_up->load()); };
  const auto answer = [&] { return reached() >= tick ? Wait::Reached : over() ? Wait::Never : Wait::TimedOut; };
  if (reached() < tick && (tick > promised() || ended())) return Wait::Never;
  if (spin_until(timeout_ns < 0 ? kSpinNanos : std::min(timeout_ns, kSpinNanos), over)) return answer();
  sleepers_.fetch_add(1);  // before `over` is read, as advance() reads it after it has stored: one sees the other
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(changed_, lock, timeout_ns, over);
  sleepers_.fetch_sub(1);
  return answer();
}

void Timeline::advance() {
  reached_.fetch_add(1);
  if (sleepers_.load() > 0) nudge();
}

void Timeline::end() {
  ended_ = true;
  nudge();
}

void Timeline::nudge() {
  mutex_.lock();  // a waiter between its look and its sleep must not miss the call
  mutex_.unlock();
  changed_.notify_all();
}

}  // namespace forebay
