// Tests of heaps: reuse, placement and release of buffers.
#include <random>
#include <vector>

#include "pool/pool.hpp"
#include "pool/tables.hpp"
#include "tests/check.hpp"

namespace forebay {

// Gives tests access to tables that check_invariants() must find corrupted.
struct PoolTest {
  static Segment& segment(Pool& pool, uint64_t address) { return pool.segments_.at(address); }
};

}  // namespace forebay

using namespace forebay;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBase = 64 * kMiB, kOther = 4096 * kMiB;
constexpr uint64_t kHeap = 8 * kMiB;

struct HeapsFixture {
  Pool pool;

  explicit HeapsFixture(bool track_age = false, uint64_t heap_limit = 0) {
    const std::vector<uint64_t> steps(16, 0);
    pool.set_policy(Policy(steps, kUnlimited, 0, 0, false, track_age, false, kMinAlignment, heap_limit));
  }

  Block* add_heap(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue = 0) {
    return pool.adopt_and_allocate(nbytes, address, size, queue, 0, 0);
  }
  uint64_t reserved() const { return static_cast<uint64_t>(pool.count(kReservedBytes, kAllSizes).current); }
  bool is_consistent() const { return pool.check_invariants() == nullptr; }
  std::string violation() const {
    const char* invariant = pool.check_invariants();
    return invariant == nullptr ? "" : invariant;
  }
};

}  // namespace

TEST(buffers_are_adjacent_and_aligned) {
  HeapsFixture heaps;
  Block* first = heaps.add_heap(1, kBase, kHeap);
  Block* second = heaps.pool.new_buffer(257, 0, 0, 0);
  CHECK(first->address == kBase && first->size == 256);
  CHECK(second->address == kBase + 256 && second->size == 512);
  CHECK(heaps.pool.live_at(kBase + 256) == second);
  CHECK(heaps.reserved() == kHeap && heaps.is_consistent());
}

TEST(free_buffer_serves_smaller_request_unsplit) {
  HeapsFixture heaps;
  Block* first = heaps.add_heap(1000, kBase, kHeap);
  Block* second = heaps.pool.new_buffer(1000, 0, 0, 0);
  heaps.pool.free(first);
  heaps.pool.free(second);  // adjacent, but not merged
  CHECK(heaps.is_consistent());
  CHECK(heaps.pool.try_allocate(300, 0)->size == 1024);
  CHECK(heaps.pool.try_allocate(1025, 0) == nullptr);
  CHECK(heaps.is_consistent());
}

TEST(oversized_buffer_is_not_reused_automatically) {
  HeapsFixture heaps;
  heaps.pool.free(heaps.add_heap(40 * kMiB, kBase, 40 * kMiB));
  CHECK(heaps.pool.try_allocate(8 * kMiB - 256, 0) == nullptr);
  const BestFitBuffer best = heaps.pool.best_fit_buffer(8 * kMiB - 256, 0, 0);
  CHECK(best.address == kBase && best.size == 40 * kMiB && !best.has_gap);
  CHECK(heaps.pool.try_allocate(8 * kMiB, 0)->size == 40 * kMiB);
  CHECK(heaps.is_consistent());
}

TEST(released_buffer_merges_with_neighbouring_gaps) {
  HeapsFixture heaps;
  std::vector<Block*> buffers{heaps.add_heap(kMiB, kBase, 4 * kMiB)};
  for (int i = 0; i < 3; ++i) buffers.push_back(heaps.pool.new_buffer(kMiB, 0, 0, 0));
  CHECK(heaps.pool.new_buffer(kMiB, 0, 0, 0) == nullptr);
  for (Block* block : buffers) heaps.pool.free(block);
  CHECK(heaps.pool.release_buffer(kBase + kMiB, kMiB) == 0);
  CHECK(heaps.pool.release_buffer(kBase + 3 * kMiB, kMiB) == 0);
  CHECK(heaps.is_consistent());
  CHECK(heaps.pool.release_buffer(kBase + 2 * kMiB, kMiB) == 0);
  CHECK(heaps.is_consistent());
  CHECK(heaps.pool.release_buffer(kBase, kMiB) == kBase);  // empty
  CHECK(heaps.pool.release_buffer(kBase, kMiB) == 0);      // no longer a buffer
  CHECK(heaps.is_consistent() && heaps.reserved() == 4 * kMiB);
  CHECK(heaps.pool.evict(kBase) && heaps.reserved() == 0 && heaps.is_consistent());
}

TEST(new_buffer_uses_heap_with_smallest_sufficient_gap) {
  HeapsFixture heaps;
  heaps.add_heap(kMiB, kBase, kHeap);
  heaps.add_heap(kMiB, kOther, 4 * kMiB);
  CHECK(heaps.pool.new_buffer(kMiB, 0, 0, 0)->address == kOther + kMiB);
  CHECK(heaps.pool.new_buffer(kMiB, 0, 0, 0)->address == kOther + 2 * kMiB);
  CHECK(heaps.pool.new_buffer(kMiB, 0, 0, 0)->address == kOther + 3 * kMiB);
  CHECK(heaps.pool.new_buffer(kMiB, 0, 0, 0)->address == kBase + kMiB);
  CHECK(heaps.is_consistent());
}

TEST(new_buffer_uses_smallest_sufficient_gap) {
  HeapsFixture heaps;
  Block* first = heaps.add_heap(kMiB, kBase, kHeap);
  Block* second = heaps.pool.new_buffer(kMiB / 2, 0, 0, 0);
  Block* gap = heaps.pool.new_buffer(kMiB / 4, 0, 0, 0);
  heaps.pool.new_buffer(256, 0, 0, 0);
  heaps.pool.free(gap);
  heaps.pool.release_buffer(gap->address, kMiB / 4);
  CHECK(heaps.pool.new_buffer(1000, 0, 0, 0)->address == second->address + second->size);
  CHECK(first->address == kBase && heaps.is_consistent());
}

TEST(buffers_are_not_shared_between_queues) {
  HeapsFixture heaps;
  heaps.pool.free(heaps.add_heap(1000, kBase, kHeap, 1));
  CHECK(heaps.pool.try_allocate(1000, 2) == nullptr);
  CHECK(heaps.pool.new_buffer(1000, 2, 0, 0) == nullptr);
  CHECK(!heaps.pool.best_fit_buffer(1000, 2, 0).has_gap && heaps.pool.best_fit_buffer(1000, 1, 0).has_gap);
}

TEST(heap_limit_applies_to_free_buffers) {
  HeapsFixture heaps(false, kHeap + 1024);
  heaps.pool.free(heaps.add_heap(1025, kBase, kHeap));
  CHECK(heaps.pool.try_allocate(1025, 0) == nullptr);
  CHECK(heaps.pool.try_allocate(1024, 0) != nullptr);
}

TEST(large_buffer_age_counts_requests_since_last_free) {
  HeapsFixture heaps(true);
  heaps.pool.free(heaps.add_heap(2 * kMiB, kBase, 32 * kMiB));
  heaps.pool.try_allocate(64 * kMiB, 0);
  heaps.pool.try_allocate(1, 0);  // small requests do not count
  CHECK(heaps.pool.evictable(false, 0, false, true).at(0).age == 1);
  heaps.pool.free(heaps.pool.try_allocate(2 * kMiB, 0));
  CHECK(heaps.pool.evictable(false, 0, false, true).at(0).age == 0);
}

TEST(deferring_partition_waits_for_own_queue) {
  HeapsFixture heaps;
  heaps.pool.create_pool(7, true, true);
  Block* block = heaps.pool.adopt_and_allocate(8, kBase, kHeap, 3, 0, 7);
  CHECK(heaps.pool.free(block));
  const auto deferred = heaps.pool.deferred();
  CHECK(deferred.size() == 1 && deferred[0].users == std::vector<uint64_t>{3});
  CHECK(heaps.pool.try_allocate(8, 3, 0, 7) == nullptr);
  CHECK(heaps.pool.complete_free(deferred[0].serial) && heaps.pool.try_allocate(8, 3, 0, 7) == block);
  CHECK(heaps.is_consistent());
}

TEST(snapshot_shows_gap_as_free) {
  HeapsFixture heaps;
  heaps.add_heap(1000, kBase, kHeap);
  const Rows rows = rows_of(heaps.pool);
  CHECK(rows.segments.size() == 1 && rows.segments[0].nbytes == kHeap);
  CHECK(rows.blocks.size() == 2 && rows.blocks[1].state == static_cast<uint64_t>(State::Free));
}

TEST(check_finds_missing_gap) {
  HeapsFixture heaps;
  heaps.add_heap(1000, kBase, kHeap);
  Segment& heap = PoolTest::segment(heaps.pool, kBase);
  const auto node = heap.gaps->extract(heap.gaps->begin());
  CHECK(heaps.violation() == "a heap is not sorted by its largest gap");
}

TEST(buffer_alignment_must_be_power_of_two) {
  const std::vector<uint64_t> steps(16, 0);
  for (const uint64_t alignment : {128, 768}) {
    const auto make = [&] { Policy(steps, kUnlimited, 0, 0, false, false, false, alignment); };
    CHECK(check::error_of(make) == "the buffer alignment must be a power of two of at least 256 and less than 2^60");
  }
}

TEST(random_operations_keep_heaps_consistent) {
  HeapsFixture heaps(true);
  std::mt19937 chance(7);
  const auto below = [&](uint64_t limit) { return chance() % limit; };
  std::vector<Block*> live;
  uint64_t next = kBase;
  for (int step = 0; step < 10000; ++step) {
    const uint64_t nbytes = 1 + below(uint64_t{1} << (1 + below(21))), queue = below(2);
    if (below(3) > 0 || live.empty()) {
      Block* block = heaps.pool.try_allocate(nbytes, queue);
      if (block == nullptr) block = heaps.pool.new_buffer(nbytes, queue, 0, 0);
      if (block == nullptr) block = heaps.add_heap(nbytes, next, kHeap, queue), next += kHeap;
      CHECK(block != nullptr && block->size >= nbytes && block->address % kMinAlignment == 0);
      live.push_back(block);
    } else {
      std::swap(live[below(live.size())], live.back());
      heaps.pool.free(live.back());
      live.pop_back();
    }
    if (below(10) == 0) {
      for (const bool small : {true, false}) {
        for (const Evictable& row : heaps.pool.evictable(small, 0, false, true)) {
          if (below(2)) continue;
          const uint64_t empty = heaps.pool.release_buffer(row.address, row.size);
          if (empty != 0) CHECK(heaps.pool.evict(empty));
        }
      }
    }
    if (step % 50 == 0) CHECK(heaps.is_consistent());
  }
  for (Block* block : live) heaps.pool.free(block);
  for (const bool small : {true, false}) {
    for (const Evictable& row : heaps.pool.evictable(small, 0, false, true))
      heaps.pool.release_buffer(row.address, row.size);
    for (const Evictable& row : heaps.pool.evictable(small)) CHECK(heaps.pool.evict(row.address));
  }
  CHECK(heaps.is_consistent() && heaps.reserved() == 0);
}

int main(int count, char** words) { return check::run_all(count > 1 ? words[1] : ""); }
