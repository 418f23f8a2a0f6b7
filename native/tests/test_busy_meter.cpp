// Tests of the busy meter, with explicit times; the last two use a real queue.
#include <numeric>

#include "queue/busy_meter.hpp"
#include "queue/worker.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr int64_t kSlot = BusyMeter::kSlot, kSlots = BusyMeter::kSlots;
constexpr int64_t kStart = 1000 * kSlot;
constexpr int64_t kLimit = 20'000'000'000;

int64_t sum(const std::vector<int64_t>& slots) { return std::accumulate(slots.begin(), slots.end(), int64_t{0}); }

}  // namespace

TEST(new_meter_reads_zero) {
  const BusyMeter meter;
  CHECK(meter.read(kStart) == std::vector<int64_t>(kSlots, 0));
  CHECK(meter.read(0) == std::vector<int64_t>(kSlots, 0));
}

TEST(busy_time_is_split_by_slots) {
  BusyMeter meter;
  meter.begin(kStart + kSlot / 2);
  meter.end(kStart + 2 * kSlot + 7);
  const auto slots = meter.read(kStart + 3 * kSlot);
  CHECK(slots.size() == size_t{kSlots});
  CHECK(slots[kSlots - 3] == kSlot / 2);
  CHECK(slots[kSlots - 2] == kSlot);
  CHECK(slots[kSlots - 1] == 7);
  CHECK(sum(slots) == kSlot / 2 + kSlot + 7);
}

TEST(short_periods_in_one_slot_add_up) {
  BusyMeter meter;
  for (int64_t i = 0; i < 10; ++i) {
    meter.begin(kStart + 100 * i);
    meter.end(kStart + 100 * i + 60);
  }
  CHECK(sum(meter.read(kStart + kSlot)) == 600);
}

TEST(current_slot_is_not_reported) {
  BusyMeter meter;
  meter.begin(kStart);
  meter.end(kStart + 100);
  CHECK(sum(meter.read(kStart + 100)) == 0);
  CHECK(sum(meter.read(kStart + kSlot - 1)) == 0);
  CHECK(sum(meter.read(kStart + kSlot)) == 100);
}

TEST(running_work_counts_up_to_now) {
  BusyMeter meter;
  meter.begin(kStart);
  CHECK(sum(meter.read(kStart + 4 * kSlot + 9)) == 4 * kSlot);
  CHECK(sum(meter.read(kStart + 4 * kSlot + 9)) == 4 * kSlot);  // reading has no effect
  meter.end(kStart + 5 * kSlot);
  CHECK(sum(meter.read(kStart + 5 * kSlot)) == 5 * kSlot);
}

TEST(times_older_than_a_second_are_dropped) {
  BusyMeter meter;
  meter.begin(kStart);
  meter.end(kStart + kSlot);
  CHECK(sum(meter.read(kStart + kSlots * kSlot)) == kSlot);
  CHECK(sum(meter.read(kStart + (kSlots + 1) * kSlot)) == 0);
  CHECK(sum(meter.read(kStart + (kSlots + 2) * kSlot)) == 0);
}

TEST(long_work_fills_all_slots) {
  BusyMeter meter;
  meter.begin(5);
  meter.end(86'400'000'000'000);
  CHECK(sum(meter.read(86'400'000'000'000)) == kSlots * kSlot);
  meter.begin(2 * 86'400'000'000'000);
  CHECK(sum(meter.read(3 * 86'400'000'000'000)) == kSlots * kSlot);
}

TEST(end_without_begin_has_no_effect) {
  BusyMeter meter;
  meter.end(kStart);
  CHECK(sum(meter.read(kStart + kSlot)) == 0);
}

TEST(working_queue_is_busy) {
  static std::atomic<bool> open;
  open = false;
  Worker queue;
  CHECK(sum(queue.busy()) == 0);
  queue.run([](void*) { return spin_until(kLimit, [] { return open.load(); }) ? 0 : 1; }, nullptr);
  const bool seen = spin_until(kLimit, [&] { return sum(queue.busy()) > 0; });
  open = true;
  CHECK(seen);
  CHECK(queue.close(kLimit));
}

TEST(queue_waiting_for_another_is_not_busy) {
  static std::atomic<bool> open;
  open = false;
  Worker other, queue;
  other.run([](void*) { return spin_until(kLimit, [] { return open.load(); }) ? 0 : 1; }, nullptr);
  CHECK(queue.wait_for(other.timeline(), other.signal()));
  const bool seen = spin_until(kLimit, [&] { return sum(other.busy()) > 3 * kSlot; });
  const int64_t waited = sum(queue.busy());
  open = true;
  CHECK(seen);
  CHECK(waited < kSlot);
  CHECK(other.close(kLimit) && queue.close(kLimit));
}

int main(int count, char** arguments) { return check::run_all(count > 1 ? arguments[1] : ""); }
