// When a queue took up and ended its newest pieces of work, by their numbers. The queue's thread writes, others may
// read.
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
  explicit Log(size_t most)
      : most_(most == 0 ? 1 : most),
        slots_(static_cast<Slot*>(std::calloc(most_, sizeof(Slot)))) {  // takes no memory before it is written to
    if (!slots_) throw std::bad_alloc();
  }

  // For the queue alone; the times are of the steady clock.
  void begin(uint64_t number, int64_t now) noexcept {
    Slot& slot = slots_[number % most_];
    slot.number = 0;  // so that who reads it meanwhile finds out
    slot.begin = now;
    slot.end = 0;
    slot.number = number;
  }
  void end(uint64_t number, int64_t now) noexcept { slots_[number % most_].end = now; }

  // 0 for what has not been yet, and for what was too long ago.
  std::pair<int64_t, int64_t> times(uint64_t number) const noexcept {
    const Slot& slot = slots_[number % most_];
    const bool there = number != 0 && slot.number == number;
    const std::pair<int64_t, int64_t> found(slot.begin, slot.end);
    return there && slot.number == number ? found : std::pair<int64_t, int64_t>();
  }

 private:
  struct Slot {
    std::atomic<uint64_t> number;  // from 1 on
    std::atomic<int64_t> begin, end;
  };
  struct Free {
    void operator()(Slot* slots) const noexcept { std::free(slots); }
  };

  const size_t most_;
  const std::unique_ptr<Slot[], Free> slots_;
};

}  // namespace forebay
