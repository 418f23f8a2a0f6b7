// Work log of a queue: start and end times of its newest work items, by number. The queue's thread writes; any thread
// may read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace forebay {

class Log {
 public:
  explicit Log(size_t capacity)
      : capacity_(capacity == 0 ? 1 : capacity),
        slots_(static_cast<Slot*>(std::calloc(capacity_, sizeof(Slot)))) {  // calloc: pages are mapped when written
    if (!slots_) throw std::bad_alloc();
  }

  // For the queue only. Times are of the steady clock.
  void begin(uint64_t number, int64_t now) noexcept {
    Slot& slot = slots_[number % capacity_];
    slot.number = 0;  // so that a concurrent reader notices the change
    slot.begin = now;
    slot.end = 0;
    slot.number = number;
  }
  void end(uint64_t number, int64_t now) noexcept { slots_[number % capacity_].end = now; }

  // Returns 0 for times that are not known yet or have been overwritten.
  std::pair<int64_t, int64_t> times(uint64_t number) const noexcept {
    const Slot& slot = slots_[number % capacity_];
    const bool stored = number != 0 && slot.number == number;
    const std::pair<int64_t, int64_t> found(slot.begin, slot.end);
    return stored && slot.number == number ? found : std::pair<int64_t, int64_t>();
  }

 private:
  struct Slot {
    std::atomic<uint64_t> number;  // from 1 on
    std::atomic<int64_t> begin, end;
  };
  struct Free {
    void operator()(Slot* slots) const noexcept { std::free(slots); }
  };

  const size_t capacity_;
  const std::unique_ptr<Slot[], Free> slots_;
};

}  // namespace forebay
