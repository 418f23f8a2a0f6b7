// Busy time of a queue during the last second, in slots of the steady clock that all queues share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace forebay {

// The queue's thread calls begin() and end(); any thread may read. Times are nanoseconds of the steady clock.
class BusyMeter {
 public:
  static constexpr int64_t kSlot = 50'000'000;
  static constexpr int64_t kSlots = 20;  // one second

  void begin(int64_t now);
  void end(int64_t now);
  std::vector<int64_t> read(int64_t now) const;  // busy nanoseconds of the last kSlots complete slots, oldest first

 private:
  static constexpr int64_t kStoredSlots = kSlots + 1;  // and the current one
  struct Slot {
    int64_t number = -1;
    int64_t busy = 0;
  };
  using Slots = std::array<Slot, static_cast<size_t>(kStoredSlots)>;
  static void add(Slots& slots, int64_t from, int64_t to);

  mutable std::mutex mutex_;
  Slots slots_;
  int64_t since_ = -1;  // start of the current busy period; -1: idle
};

}  // namespace forebay
