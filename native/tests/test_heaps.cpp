// Heaps: which buffer serves, which heap a new one is put into, what becomes of a released one.
#include <random>
#include <vector>

#include "pool/check.hpp"
#include "pool/pool.hpp"
#include "pool/tables.hpp"

namespace forebay {

// Lets a test break what broken() must find.
struct PoolTest {
  static Segment& segment(Pool& pool, uint64_t address) { return pool.segments_.at(address); }
};

}  // namespace forebay

using namespace forebay;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kHere = 64 * kMiB, kThere = 4096 * kMiB;
constexpr uint64_t kHeap = 8 * kMiB;

struct Heaps {
  Pool pool;

  explicit Heaps(bool ages = false, uint64_t limit = 0) {
    const std::vector<uint64_t> steps(16, 0);
    pool.set_policy(Policy(steps, kUnlimited, 0, 0, false, ages, false, kGrain, limit));
  }

  Block* make(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue = 0) {
    return pool.adopt_for(nbytes, address, size, queue, 0, 0);
  }
  uint64_t reserved() const { return static_cast<uint64_t>(pool.count(kReservedBytes, kAll).current); }
  bool sound() const { return pool.broken() == nullptr; }
  std::string fault() const {
    const char* rule = pool.broken();
    return rule == nullptr ? "" : rule;
  }
};

}  // namespace

TEST(buffers_lie_one_after_another_at_multiples_of_their_alignment) {
  Heaps heaps;
  Block* first = heaps.make(1, kHere, kHeap);
  Block* second = heaps.pool.place(257, 0, 0, 0);
  CHECK(first->address == kHere && first->size == 256);
  CHECK(second->address == kHere + 256 && second->size == 512);
  CHECK(heaps.pool.live_at(kHere + 256) == second);
  CHECK(heaps.reserved() == kHeap && heaps.sound());
}

TEST(a_free_buffer_stays_whole_and_serves_a_smaller_request) {
  Heaps heaps;
  Block* first = heaps.make(1000, kHere, kHeap);
  Block* second = heaps.pool.place(1000, 0, 0, 0);
  heaps.pool.give(first);
  heaps.pool.give(second);  // beside it, and not joined with it
  CHECK(heaps.sound());
  CHECK(heaps.pool.take(300, 0)->size == 1024);
  CHECK(heaps.pool.take(1025, 0) == nullptr);
  CHECK(heaps.sound());
}

TEST(one_that_is_far_too_large_is_for_the_ladder_to_decide) {
  Heaps heaps;
  heaps.pool.give(heaps.make(40 * kMiB, kHere, 40 * kMiB));
  CHECK(heaps.pool.take(8 * kMiB - 256, 0) == nullptr);
  const Nearest nearest = heaps.pool.nearest(8 * kMiB - 256, 0, 0);
  CHECK(nearest.address == kHere && nearest.size == 40 * kMiB && !nearest.room);
  CHECK(heaps.pool.take(8 * kMiB, 0)->size == 40 * kMiB);
  CHECK(heaps.sound());
}

TEST(a_released_buffer_becomes_room_with_what_is_beside_it) {
  Heaps heaps;
  std::vector<Block*> made{heaps.make(kMiB, kHere, 4 * kMiB)};
  for (int i = 0; i < 3; ++i) made.push_back(heaps.pool.place(kMiB, 0, 0, 0));
  CHECK(heaps.pool.place(kMiB, 0, 0, 0) == nullptr);
  for (Block* block : made) heaps.pool.give(block);
  CHECK(heaps.pool.release(kHere + kMiB, kMiB) == 0);
  CHECK(heaps.pool.release(kHere + 3 * kMiB, kMiB) == 0);
  CHECK(heaps.sound());
  CHECK(heaps.pool.release(kHere + 2 * kMiB, kMiB) == 0);
  CHECK(heaps.sound());
  CHECK(heaps.pool.release(kHere, kMiB) == kHere);  // empty
  CHECK(heaps.pool.release(kHere, kMiB) == 0);      // there is none any more
  CHECK(heaps.sound() && heaps.reserved() == 4 * kMiB);
  CHECK(heaps.pool.evict(kHere) && heaps.reserved() == 0 && heaps.sound());
}

TEST(the_heap_with_the_least_room_that_is_enough_gets_a_new_buffer) {
  Heaps heaps;
  heaps.make(kMiB, kHere, kHeap);
  heaps.make(kMiB, kThere, 4 * kMiB);
  CHECK(heaps.pool.place(kMiB, 0, 0, 0)->address == kThere + kMiB);
  CHECK(heaps.pool.place(kMiB, 0, 0, 0)->address == kThere + 2 * kMiB);
  CHECK(heaps.pool.place(kMiB, 0, 0, 0)->address == kThere + 3 * kMiB);
  CHECK(heaps.pool.place(kMiB, 0, 0, 0)->address == kHere + kMiB);
  CHECK(heaps.sound());
}

TEST(in_its_heap_a_buffer_takes_the_smallest_room_that_is_enough) {
  Heaps heaps;
  Block* first = heaps.make(kMiB, kHere, kHeap);
  Block* second = heaps.pool.place(kMiB / 2, 0, 0, 0);
  Block* gap = heaps.pool.place(kMiB / 4, 0, 0, 0);
  heaps.pool.place(256, 0, 0, 0);
  heaps.pool.give(gap);
  heaps.pool.release(gap->address, kMiB / 4);
  CHECK(heaps.pool.place(1000, 0, 0, 0)->address == second->address + second->size);
  CHECK(first->address == kHere && heaps.sound());
}

TEST(what_belongs_to_one_queue_serves_no_other) {
  Heaps heaps;
  heaps.pool.give(heaps.make(1000, kHere, kHeap, 1));
  CHECK(heaps.pool.take(1000, 2) == nullptr);
  CHECK(heaps.pool.place(1000, 2, 0, 0) == nullptr);
  CHECK(!heaps.pool.nearest(1000, 2, 0).room && heaps.pool.nearest(1000, 1, 0).room);
}

TEST(at_the_limit_not_even_a_free_buffer_serves) {
  Heaps heaps(false, kHeap + 1024);
  heaps.pool.give(heaps.make(1025, kHere, kHeap));
  CHECK(heaps.pool.take(1025, 0) == nullptr);
  CHECK(heaps.pool.take(1024, 0) != nullptr);
}

TEST(large_buffers_grow_old_with_each_request_and_young_again_when_they_served) {
  Heaps heaps(true);
  heaps.pool.give(heaps.make(2 * kMiB, kHere, 32 * kMiB));
  heaps.pool.take(64 * kMiB, 0);
  heaps.pool.take(1, 0);  // small ones do not count
  CHECK(heaps.pool.evictable(false, 0, false, true).at(0).age == 1);
  heaps.pool.give(heaps.pool.take(2 * kMiB, 0));
  CHECK(heaps.pool.evictable(false, 0, false, true).at(0).age == 0);
}

TEST(in_a_home_that_waits_a_buffer_comes_back_after_its_own_queue) {
  Heaps heaps;
  heaps.pool.make_home(7, true, true);
  Block* block = heaps.pool.adopt_for(8, kHere, kHeap, 3, 0, 7);
  CHECK(heaps.pool.give(block));
  const auto waiting = heaps.pool.deferred();
  CHECK(waiting.size() == 1 && waiting[0].uses == std::vector<uint64_t>{3});
  CHECK(heaps.pool.take(8, 3, 0, 7) == nullptr);
  CHECK(heaps.pool.settle(waiting[0].serial) && heaps.pool.take(8, 3, 0, 7) == block);
  CHECK(heaps.sound());
}

TEST(a_snapshot_shows_room_as_free) {
  Heaps heaps;
  heaps.make(1000, kHere, kHeap);
  const Rows rows = rows_of(heaps.pool);
  CHECK(rows.segments.size() == 1 && rows.segments[0].nbytes == kHeap);
  CHECK(rows.blocks.size() == 2 && rows.blocks[1].state == static_cast<uint64_t>(State::Free));
}

TEST(what_a_heap_forgets_is_found) {
  Heaps heaps;
  heaps.make(1000, kHere, kHeap);
  Segment& heap = PoolTest::segment(heaps.pool, kHere);
  const auto node = heap.rooms->extract(heap.rooms->begin());
  CHECK(heaps.fault() == "a heap is not filed by its room");
}

TEST(an_alignment_is_a_power_of_two) {
  const std::vector<uint64_t> steps(16, 0);
  for (const uint64_t wrong : {128, 768}) {
    const auto make = [&] { Policy(steps, kUnlimited, 0, 0, false, false, false, wrong); };
    CHECK(check::refusal(make) == "buffers are aligned to a power of two, 256 or more");
  }
}

TEST(ten_thousand_steps_leave_every_rule_in_force) {
  Heaps heaps(true);
  std::mt19937 chance(7);
  const auto up_to = [&](uint64_t most) { return chance() % most; };
  std::vector<Block*> live;
  uint64_t next = kHere;
  for (int step = 0; step < 10000; ++step) {
    const uint64_t nbytes = 1 + up_to(uint64_t{1} << (1 + up_to(21))), queue = up_to(2);
    if (up_to(3) > 0 || live.empty()) {
      Block* block = heaps.pool.take(nbytes, queue);
      if (block == nullptr) block = heaps.pool.place(nbytes, queue, 0, 0);
      if (block == nullptr) block = heaps.make(nbytes, next, kHeap, queue), next += kHeap;
      CHECK(block != nullptr && block->size >= nbytes && block->address % kGrain == 0);
      live.push_back(block);
    } else {
      std::swap(live[up_to(live.size())], live.back());
      heaps.pool.give(live.back());
      live.pop_back();
    }
    if (up_to(10) == 0) {
      for (const bool small : {true, false}) {
        for (const Evictable& row : heaps.pool.evictable(small, 0, false, true)) {
          if (up_to(2)) continue;
          const uint64_t empty = heaps.pool.release(row.address, row.size);
          if (empty != 0) CHECK(heaps.pool.evict(empty));
        }
      }
    }
    if (step % 50 == 0) CHECK(heaps.sound());
  }
  for (Block* block : live) heaps.pool.give(block);
  for (const bool small : {true, false}) {
    for (const Evictable& row : heaps.pool.evictable(small, 0, false, true)) heaps.pool.release(row.address, row.size);
    for (const Evictable& row : heaps.pool.evictable(small)) CHECK(heaps.pool.evict(row.address));
  }
  CHECK(heaps.sound() && heaps.reserved() == 0);
}

int main(int count, char** words) { return check::run_all(count > 1 ? words[1] : ""); }
