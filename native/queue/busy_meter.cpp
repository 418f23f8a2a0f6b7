#include "queue/busy_meter.hpp"

#include <algorithm>

namespace forebay {

void BusyMeter::begin(int64_t now) {
  std::lock_guard<std::mutex> lock(mutex_);
  since_ = now;
}

void BusyMeter::end(int64_t now) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (since_ >= 0) add(slots_, since_, now);
  since_ = -1;
}

std::vector<int64_t> BusyMeter::read(int64_t now) const {
  std::unique_lock<std::mutex> lock(mutex_);
  Slots slots = slots_;
  const int64_t since = since_;
  lock.unlock();
  if (since >= 0) add(slots, since, now);
  std::vector<int64_t> busy;
  for (int64_t number = now / kSlot - kSlots; number < now / kSlot; ++number) {
    const Slot slot = number < 0 ? Slot() : slots[static_cast<size_t>(number % kStoredSlots)];
    busy.push_back(slot.number == number ? slot.busy : 0);
  }
  return busy;
}

void BusyMeter::add(Slots& slots, int64_t from, int64_t to) {
  for (from = std::max(from, (to / kSlot - kSlots) * kSlot); from < to;) {
    const int64_t number = from / kSlot, end = std::min(to, (number + 1) * kSlot);
    Slot& slot = slots[static_cast<size_t>(number % kStoredSlots)];
    if (slot.number != number) slot = {number, 0};
    slot.busy += end - from;
    from = end;
  }
}

}  // namespace forebay
