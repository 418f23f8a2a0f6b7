// How much of the last second a queue was at work, in slots of the steady clock that all queues share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace forebay {

// The queue's thread says when it begins and ends; any thread may read. Times are nanoseconds of the steady clock.
class BusyMeter {
 public:
  static constexpr int64_t kSlot = 50'000'000;
  static constexpr int64_t kSlots = 20;  // a second

  void begin(int64_t now);
  void end(int64_t now);
  std::vector<int64_t> read(int64_t now) const;  // nanoseconds at work in each of the last full slots, the oldest first

 private:
  static constexpr int64_t kKept = kSlots + 1;  // the one that goes on, too
  struct Slot {
    int64_t number = -1;
    int64_t busy = 0;
  };
  using Slots = std::array<Slot, static_cast<size_t>(kKept)>;
  static void add(Slots& slots, int64_t from, int64_t to);

  mutable std::mutex mutex_;
  Slots slots_;
  int64_t since_ = -1;  // at work since then, or not
};

}  // namespace forebay
