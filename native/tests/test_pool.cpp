// Tests of the pool and of each table it uses.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "pool/pool.hpp"
#include "pool/stacks.hpp"
#include "pool/tables.hpp"
#include "tests/check.hpp"

namespace forebay {

// Gives tests access to tables that check_invariants() must find corrupted.
struct PoolTest {
  static Statistics& statistics(Pool& pool) { return pool.statistics_; }
  static LiveTable& live(Pool& pool) { return pool.live_; }
  static Segment& segment(Pool& pool, uint64_t address) { return pool.segments_.at(address); }
  static bool overlaps(const Pool& pool, uint64_t address, uint64_t size) { return pool.overlaps(address, size); }
  static void add_pending(Pool& pool, Block* block) { pool.pending_frees_.emplace(block->serial, block); }
};

}  // namespace forebay

using namespace forebay;

// Memory of the host: the allocation after `until_failure` others fails. Not inlined, else the compiler reports
// mismatched allocation functions.
static thread_local int64_t until_failure = -1;  // below 0: none fails

[[gnu::noinline]] void* operator new(size_t nbytes) {
  if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(nbytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t nbytes, const std::nothrow_t&) noexcept {
  return until_failure >= 0 && until_failure-- == 0 ? nullptr : std::malloc(nbytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBase = 64 * kMiB;  // address of the first segment

// Blocks outside any pool, of rank 0 by default.
struct LooseBlocks {
  std::deque<Block> blocks;

  Block* block(uint64_t size, uint64_t address) {
    Block& added = blocks.emplace_back();
    added.size = size;
    added.address = address;
    return &added;
  }
};

// A pool with one segment of the small class for queue 0.
struct PoolFixture {
  Pool pool;

  PoolFixture() { pool.adopt(kBase, kSmallSegment, 0, true); }

  int64_t current(Metric metric) const { return pool.count(metric, kAllSizes).current; }
  bool is_consistent() const { return pool.check_invariants() == nullptr; }
  std::string violation() const {
    const char* invariant = pool.check_invariants();
    return invariant == nullptr ? "" : invariant;
  }
};

}  // namespace

// FreeList

TEST(best_fit_is_smallest_sufficient_block) {
  LooseBlocks loose;
  FreeList list{nullptr, true};
  Block* small = loose.block(1024, 0x4000);
  Block* large = loose.block(8192, 0x1000);
  list.insert(large);
  list.insert(small);
  CHECK(list.best_fit(512) == small);
  CHECK(list.best_fit(1024) == small);
  CHECK(list.best_fit(1536) == large);
  CHECK(list.best_fit(8704) == nullptr);
  CHECK(list.count() == 2);
}

TEST(best_fit_prefers_lowest_address) {
  LooseBlocks loose;
  FreeList list{nullptr, true};
  Block* high = loose.block(1024, 0x8000);
  Block* low = loose.block(1024, 0x2000);
  Block* middle = loose.block(1024, 0x4000);
  for (Block* block : {high, low, middle}) list.insert(block);
  for (Block* expected : {low, middle, high}) {
    CHECK(list.best_fit(1024) == expected);
    list.erase(expected);
  }
  CHECK(list.best_fit(1024) == nullptr);
}

TEST(best_fit_prefers_oldest_segment) {  // as in PyTorch since 2.10
  LooseBlocks loose;
  FreeList list{nullptr, true};
  Block* low = loose.block(1024, 0x2000);
  Block* older = loose.block(1024, 0x8000);
  low->rank = 1;
  list.insert(low);
  list.insert(older);
  CHECK(list.best_fit(1024) == older);
}

TEST(block_in_middle_of_bin_can_be_erased) {
  LooseBlocks loose;
  FreeList list{nullptr, true};
  std::vector<Block*> blocks;
  for (uint64_t at = 1; at <= 100; ++at) list.insert(blocks.emplace_back(loose.block(1024, at * 1024)));
  list.erase(blocks[50]);
  CHECK(!list.contains(blocks[50]));
  CHECK(list.contains(blocks[49]) && list.contains(blocks[51]));
  CHECK(list.count() == 99);
}

TEST(bin_boundaries_separate_sizes) {
  LooseBlocks loose;
  FreeList list{nullptr, true};
  for (unsigned log = 9; log < 60; ++log) {
    for (const int64_t off : {-512, 0, 512}) {
      const uint64_t size = (uint64_t{1} << log) + static_cast<uint64_t>(off);
      if (size == 0) continue;
      Block* block = loose.block(size, 0x1000);
      list.insert(block);
      CHECK(list.best_fit(size) == block);
      CHECK(list.best_fit(size + 512) == nullptr);
      list.erase(block);
    }
  }
}

TEST(free_list_matches_ordered_set) {
  const auto key = [](const Block* b) { return std::make_tuple(b->size, b->rank, b->address); };
  const auto before = [&](const Block* a, const Block* b) { return key(a) < key(b); };
  std::set<Block*, decltype(before)> expected(before);
  std::mt19937_64 chance(1);
  LooseBlocks loose;
  FreeList list{nullptr, true};
  std::vector<Block*> listed;
  for (uint64_t step = 0; step < 10'000; ++step) {
    if (listed.empty() || chance() % 5 < 3) {
      const uint64_t quanta = chance() % 2 ? 1 + chance() % 8 : uint64_t{1} << chance() % 20;
      Block* block = loose.block(quanta * kMinBlockSize, (1 + chance() % 4096) * kMiB + step * kMinBlockSize);
      block->rank = chance() % 2;
      listed.push_back(block);
      list.insert(block);
      expected.insert(block);
    } else {
      std::swap(listed[chance() % listed.size()], listed.back());
      list.erase(listed.back());
      expected.erase(listed.back());
      listed.pop_back();
    }
    LooseBlocks wanted;
    const auto found = expected.lower_bound(wanted.block((1 + chance() % 512) * kMinBlockSize, 0));
    CHECK(list.best_fit(wanted.blocks.front().size) == (found == expected.end() ? nullptr : *found));
    CHECK(list.count() == expected.size());
  }
}

// LiveTable

TEST(live_table_finds_exact_addresses) {
  LooseBlocks loose;
  LiveTable table;
  Block* block = loose.block(1024, 0x4000);
  table.reserve_slots(1);
  table.insert(block);
  CHECK(table.find(0x4000) == block);
  CHECK(table.find(0x4200) == nullptr);
  table.erase(block);
  CHECK(table.find(0x4000) == nullptr);
  CHECK(table.count() == 0);
}

TEST(live_table_matches_hash_map) {  // few addresses: runs collide, wrap and shift back; many: the table grows
  for (const uint64_t addresses : {48, 100'000}) {
    std::unordered_map<uint64_t, Block*> expected;
    std::mt19937_64 chance(addresses);
    std::deque<Block> blocks;
    LiveTable table;
    for (int step = 0; step < 50'000; ++step) {
      const uint64_t address = (1 + chance() % addresses) * kMinBlockSize;
      const auto at = expected.find(address);
      CHECK(table.find(address) == (at == expected.end() ? nullptr : at->second));
      if (at == expected.end()) {
        Block& added = blocks.emplace_back();
        added.address = address;
        table.reserve_slots(1);
        table.insert(expected[address] = &added);
      } else {
        table.erase(at->second);
        expected.erase(at);
      }
      CHECK(table.count() == expected.size());
    }
    for (const auto& [address, block] : expected) CHECK(table.find(address) == block);
  }
}

// Statistics

TEST(statistics_count_allocated_and_freed) {
  Statistics statistics;
  statistics.add(kActiveBytes, true, 100);
  statistics.add(kActiveBytes, true, -30);
  statistics.add(kActiveBytes, false, 50);
  const Stat small = statistics.read(kActiveBytes, kSmallClass), all = statistics.read(kActiveBytes, kAllSizes);
  CHECK(small.current == 70 && small.peak == 100 && small.allocated == 100 && small.freed == 30);
  CHECK(all.current == 120 && all.peak == 120 && all.allocated == 150 && all.freed == 30);
  CHECK(statistics.read(kActive, kAllSizes).peak == 0);
}

TEST(overall_peak_is_not_sum_of_class_peaks) {
  Statistics statistics;
  statistics.add(kActive, true, 10);
  statistics.add(kActive, true, -10);
  statistics.add(kActive, false, 10);
  CHECK(statistics.read(kActive, kSmallClass).peak == 10);
  CHECK(statistics.read(kActive, kLargeClass).peak == 10);
  CHECK(statistics.read(kActive, kAllSizes).peak == 10);
}

TEST(resets_keep_current_values) {
  Statistics statistics;
  statistics.add(kActive, true, 10);
  statistics.add(kActive, true, -7);
  statistics.reset_peaks();
  statistics.reset_accumulated();
  statistics.add(kActive, true, -1);
  const Stat count = statistics.read(kActive, kAllSizes);
  CHECK(count.current == 2 && count.peak == 3 && count.allocated == 0 && count.freed == 1);
}

// Ring

TEST(ring_keeps_newest_entries) {
  for (const uint64_t capacity : {1, 3, 16384, 16385, 40000}) {
    Ring<Entry> ring(capacity);
    CHECK(ring.size() == 0 && ring.lost() == 0);
    for (uint64_t n = 0; n < 100'000; ++n) {
      ring.push(Entry{n, 0, 0, 0, 0, Action::Alloc, 0, 0});
      CHECK(ring.size() == std::min(n + 1, capacity));
      CHECK(ring.size() + ring.lost() == n + 1);
      CHECK(ring[0].time_ns == ring.lost());
      CHECK(ring[ring.size() - 1].time_ns == n);
    }
  }
}

// An entry whose arrays need memory that may be missing.
struct ScarceEntry {
  uint64_t number = 0;
  static inline bool available = true;
  static void* operator new[](size_t nbytes) { return available ? ::operator new[](nbytes) : throw std::bad_alloc(); }
  static void operator delete[](void* memory) { ::operator delete[](memory); }
};

TEST(ring_without_memory_to_grow_keeps_its_size) {
  Ring<ScarceEntry> ring(40'000);
  for (uint64_t n = 0; n < 50'000; ++n) {
    ScarceEntry::available = n < 20'000;  // enough for two chunks
    bool full = false;
    ring.next(&full).number = n;
    CHECK(full == (n >= 32'768));
    CHECK(ring.size() == std::min<uint64_t>(n + 1, 32'768));
    CHECK(ring[0].number == ring.lost() && ring[ring.size() - 1].number == n);
  }
  ScarceEntry::available = true;
  ring.next().number = 50'000;
  CHECK(ring.size() == 32'768 && ring[ring.size() - 1].number == 50'000);  // it does not grow later
}

// Note [Pools call nothing]: each operation is attempted with the first, the second, ... allocation failing, until none
// does. A failure changes nothing that a caller can see; memory that the pool was given may stay, as free memory.
TEST(operations_without_memory_change_nothing) {
  Pool pool;
  const auto seen = [&] {
    std::vector<std::tuple<uint64_t, uint64_t, State, size_t>> rows;
    pool.walk(
        [&](const Segment& segment) { rows.emplace_back(segment.address, segment.size, State::Gap, 0); },
        [&](const Block& block) { rows.emplace_back(block.address, block.size, block.state, block.users.size()); });
    return std::make_tuple(rows, pool.counts(), pool.pools_with_segments());
  };
  int failures = 0;
  const auto attempt = [&](auto operation, bool may_keep_memory = false) {
    for (int64_t count = 0;; ++count) {
      const auto before = seen();
      try {
        until_failure = count;
        operation();
        until_failure = -1;
        CHECK(pool.check_invariants() == nullptr);
        return;
      } catch (const std::bad_alloc&) {
        until_failure = -1;
        ++failures;
        CHECK(pool.check_invariants() == nullptr);
        if (may_keep_memory && seen() != before) return;
        CHECK(seen() == before);
      }
    }
  };
  pool.set_policy(Policy(std::vector<uint64_t>(16, 1), kUnlimited, kUnlimited, kLargeSegment, true, false, false));
  std::mt19937 random(1);
  std::vector<Block*> live;
  uint64_t next = kBase;
  for (int step = 0; step < 1000; ++step) {
    const uint64_t queue = random() % 3, nbytes = 1 + random() % (3 * kMiB);
    const auto partition = static_cast<uint32_t>(random() % 3);
    Block* made = nullptr;
    Block* some = live.empty() ? nullptr : live[random() % live.size()];
    switch (random() % 7) {
      case 0:
        if (partition != 0) attempt([&] { pool.create_pool(partition, true, partition == 2); });
        attempt([&] { made = pool.adopt_and_allocate(nbytes, next, kLargeSegment, queue, 0, partition); }, true);
        next += kLargeSegment;
        break;
      case 1:
      case 2:
        attempt([&] { made = pool.try_allocate(nbytes, queue, 0, partition); });
        break;
      case 3:
        if (some != nullptr) attempt([&] { pool.record_stream(some, queue); });
        break;
      case 4:
        if (some == nullptr) break;
        attempt([&] { pool.free(some); });
        live.erase(std::find(live.begin(), live.end(), some));
        break;
      case 5: {
        const auto pending = pool.deferred();
        if (pending.empty()) break;
        std::set<uint64_t> serials;
        for (const DeferredFree& each : pending) CHECK(serials.insert(each.serial).second);
        attempt([&] { CHECK(pool.complete_free(pending[0].serial)); });
        break;
      }
      default: {
        if (step % 5 == 0) {
          attempt([&] { pool.adopt_expandable(next, 10 * kLargeSegment, kSmallSegment, queue, false, 0); });
          next += 10 * kLargeSegment;
        }
        PageRange range;
        attempt([&] { range = pool.choose_pages(nbytes + kMiB, queue, 0); });
        if (range.size != 0) attempt([&] { made = pool.commit_done(range.address, nbytes + kMiB, 0); }, true);
      }
    }
    if (made != nullptr) live.push_back(made);
  }
  CHECK(failures > 100);
}

// StackTable

TEST(equal_stacks_have_equal_numbers) {
  StackTable stacks;
  const StackFrame one[] = {{0x10, 1}, {0x20, 2}, {0x30, 3}};  // innermost first
  const StackFrame two[] = {{0x10, 9}, {0x20, 2}, {0x30, 3}};
  CHECK(stacks.intern(nullptr, 0) == 0);
  const uint32_t first = stacks.intern(one, 3), second = stacks.intern(two, 3);
  CHECK(first != second);
  CHECK(stacks.intern(one, 3) == first);
  CHECK(stacks.intern(two, 3) == second);
  CHECK(stacks[first].parent == stacks[second].parent);  // shared callers are stored once
  CHECK(stacks.size() == 1 + 4);
  CHECK(stacks.intern(one + 1, 2) == stacks[first].parent);
}

TEST(stack_number_identifies_its_frames) {
  StackTable stacks;
  std::mt19937_64 chance(2);
  std::vector<std::pair<std::vector<StackFrame>, uint32_t>> interned;
  for (int step = 0; step < 5'000; ++step) {
    std::vector<StackFrame> frames(chance() % 12);
    for (StackFrame& frame : frames) frame = {(1 + chance() % 6) * 64, static_cast<int32_t>(chance() % 4)};
    interned.emplace_back(frames, stacks.intern(frames.data(), frames.size()));
  }
  CHECK(stacks.size() > 10'000);  // the table has grown
  for (const auto& [frames, number] : interned) {
    CHECK(stacks.intern(frames.data(), frames.size()) == number);
    uint32_t at = number;
    for (const StackFrame& frame : frames) {
      CHECK(stacks[at].frame == frame);
      CHECK(stacks[at].parent < at);
      at = stacks[at].parent;
    }
    CHECK(at == 0);
  }
}

// Pool

TEST(allocation_splits_block_from_front) {
  PoolFixture fixture;
  Block* first = fixture.pool.try_allocate(1000, 0);
  Block* second = fixture.pool.try_allocate(1, 0);
  CHECK(first->address == kBase && first->size == 1024 && first->requested == 1000);
  CHECK(second->address == kBase + 1024 && second->size == 512);
  CHECK(fixture.current(kInactiveSplitBytes) == static_cast<int64_t>(kSmallSegment - 1536));
  CHECK(fixture.is_consistent());
}

TEST(large_block_is_not_split_for_small_remainder) {
  Pool pool;
  pool.adopt(kBase, 20 * kMiB, 0, false);
  Block* block = pool.try_allocate(19 * kMiB, 0);
  CHECK(block->size == 20 * kMiB);
  pool.free(block);
  CHECK(pool.try_allocate(19 * kMiB - 512, 0)->size == 19 * kMiB - 512);
  CHECK(pool.check_invariants() == nullptr);
}

TEST(freed_block_merges_with_both_neighbours) {
  PoolFixture fixture;
  Block* left = fixture.pool.try_allocate(512, 0);
  Block* middle = fixture.pool.try_allocate(512, 0);
  Block* right = fixture.pool.try_allocate(512, 0);
  fixture.pool.free(left);
  CHECK(fixture.pool.try_allocate(1024, 0)->address == kBase + 1536);  // the 512 free bytes before are too small
  fixture.pool.free(right);
  fixture.pool.free(middle);
  CHECK(fixture.is_consistent());
  CHECK(fixture.pool.try_allocate(1536, 0)->address == kBase);
}

TEST(allocation_prefers_first_adopted_segment) {
  Pool by_arrival, by_address;
  for (const uint64_t address : {kBase + kSmallSegment, kBase}) {
    by_arrival.adopt(address, kSmallSegment, 0, true);
    by_address.adopt(address, kSmallSegment, 0, true, 0, address);
  }
  CHECK(by_arrival.try_allocate(512, 0)->address == kBase + kSmallSegment);
  CHECK(by_address.try_allocate(512, 0)->address == kBase);
}

TEST(blocks_are_not_shared_between_queues) {
  PoolFixture fixture;
  CHECK(fixture.pool.try_allocate(512, 1) == nullptr);
  CHECK(fixture.pool.try_allocate(2 * kMiB, 0) == nullptr);  // nor does the large class use small segments
}

TEST(zero_and_excessive_sizes_do_not_fit) {
  PoolFixture fixture;
  CHECK(fixture.pool.try_allocate(0, 0) == nullptr);
  CHECK(fixture.pool.try_allocate(kMaxRequest, 0) == nullptr);
  CHECK(fixture.pool.try_allocate(~uint64_t{0}, 0) == nullptr);
}

TEST(segment_is_evicted_when_wholly_free) {
  PoolFixture fixture;
  Block* block = fixture.pool.try_allocate(512, 0);
  CHECK(!fixture.pool.evict(kBase));
  CHECK(fixture.pool.evictable(true).empty());
  fixture.pool.free(block);
  const auto found = fixture.pool.evictable(true);
  CHECK(found.size() == 1 && found[0].address == kBase && found[0].size == kSmallSegment);
  CHECK(!fixture.pool.evict(kBase + 512));
  CHECK(fixture.pool.evict(kBase));
  CHECK(!fixture.pool.evict(kBase));
  CHECK(fixture.pool.try_allocate(512, 0) == nullptr);
  CHECK(fixture.current(kReservedBytes) == 0 && fixture.current(kSegment) == 0);
  CHECK(fixture.is_consistent());
}

TEST(pool_owns_exactly_its_segments) {
  PoolFixture fixture;
  CHECK(!fixture.pool.owns(kBase - 1) && fixture.pool.owns(kBase));
  CHECK(fixture.pool.owns(kBase + kSmallSegment - 1) && !fixture.pool.owns(kBase + kSmallSegment));
  const auto overlaps = [&](uint64_t address, uint64_t size) {
    return PoolTest::overlaps(fixture.pool, address, size);
  };
  CHECK(overlaps(kBase - 512, 513) && !overlaps(kBase - 512, 512));
  CHECK(overlaps(0, ~uint64_t{0}) && !overlaps(kBase + kSmallSegment, kMiB));
}

TEST(misaligned_or_overlapping_segment_is_rejected) {
  PoolFixture fixture;
  const auto is_accepted = [&](uint64_t address, uint64_t size) {
    return check::error_of([&] { fixture.pool.adopt(address, size, 0, true); }).empty();
  };
  CHECK(!is_accepted(0, 512) && !is_accepted(513, 512) && !is_accepted(512, 0) && !is_accepted(512, 511));
  CHECK(!is_accepted(~uint64_t{511}, 1024));  // past the end of the address space
  CHECK(!is_accepted(kBase - 512, 1024) && !is_accepted(kBase + kSmallSegment - 512, 512));
  CHECK(fixture.current(kSegment) == 1 && fixture.is_consistent());
  CHECK(is_accepted(kBase - 512, 512) && is_accepted(kBase + kSmallSegment, 512));
  CHECK(check::error_of([&] { fixture.pool.adopt(kBase, 512, 0, true); }) ==
        "a segment at 0x4000000 of 512 bytes would overlap another");
}

TEST(invalid_metric_or_size_class_is_rejected) {
  PoolFixture fixture;
  CHECK(fixture.pool.counts().size() == kMetrics * kSizeClasses * 4);
  CHECK(fixture.pool.counts()[kReservedBytes * kSizeClasses * 4] == kSmallSegment);
  CHECK(!check::error_of([&] { fixture.pool.count(kMetrics, 0); }).empty());
  CHECK(!check::error_of([&] { fixture.pool.count(0, kSizeClasses); }).empty());
}

TEST(block_with_users_is_pending_until_free_completes) {
  PoolFixture fixture;
  Block* block = fixture.pool.try_allocate(512, 0);
  fixture.pool.record_stream(block, 0);  // the block's own queue is ignored
  fixture.pool.record_stream(block, 7);
  fixture.pool.record_stream(block, 7);
  CHECK(block->users == std::vector<uint64_t>{7});
  CHECK(fixture.pool.free(block));
  CHECK(fixture.current(kAllocation) == 0 && fixture.current(kActive) == 1);
  const auto deferred = fixture.pool.deferred();
  CHECK(deferred.size() == 1 && deferred[0].serial == block->serial && deferred[0].users == std::vector<uint64_t>{7});
  CHECK(fixture.pool.deferred().size() == 1);  // reported until acknowledged
  fixture.pool.acknowledge_deferred(deferred[0].serial);
  CHECK(fixture.pool.deferred().empty());
  CHECK(fixture.pool.try_allocate(512, 0)->address == kBase + 512);
  CHECK(fixture.is_consistent());
  CHECK(fixture.pool.complete_free(deferred[0].serial));
  CHECK(!fixture.pool.complete_free(deferred[0].serial));
  CHECK(fixture.pool.try_allocate(512, 0)->address == kBase);
  CHECK(fixture.is_consistent());
}

TEST(completed_free_is_no_longer_deferred) {
  PoolFixture fixture;
  Block* block = fixture.pool.try_allocate(512, 0);
  fixture.pool.record_stream(block, 1);
  fixture.pool.free(block);
  fixture.pool.complete_free(block->serial);
  CHECK(fixture.pool.deferred().empty());
}

TEST(resize_in_place_keeps_block_size) {
  PoolFixture fixture;
  Block* block = fixture.pool.try_allocate(1000, 0);
  CHECK(fixture.pool.resize(block, 600, 0));
  CHECK(block->requested == 600 && fixture.current(kRequestedBytes) == 600);
  CHECK(!fixture.pool.resize(block, 1025, 0));  // does not fit
  CHECK(!fixture.pool.resize(block, 512, 0));   // would leave a splittable remainder
  CHECK(!fixture.pool.resize(block, 0, 0));
  CHECK(block->requested == 600 && fixture.is_consistent());
}

TEST(memory_is_untouched_until_first_allocation) {
  PoolFixture fixture;
  Block* first = fixture.pool.try_allocate(512, 0);
  CHECK(first->untouched);
  Block* second = fixture.pool.try_allocate(512, 0);
  CHECK(second->untouched);
  fixture.pool.free(first);
  CHECK(!fixture.pool.try_allocate(512, 0)->untouched);
  fixture.pool.free(second);  // merges with untouched memory
  CHECK(!fixture.pool.try_allocate(4096, 0)->untouched);
}

TEST(live_at_finds_blocks_by_exact_address) {
  PoolFixture fixture;
  Block* block = fixture.pool.try_allocate(2048, 0);
  CHECK(fixture.pool.live_at(kBase) == block);
  CHECK(fixture.pool.live_at(kBase + 512) == nullptr);
  CHECK(fixture.pool.live_at(kBase + 1) == nullptr);
  fixture.pool.free(block);
  CHECK(fixture.pool.live_at(kBase) == nullptr);
}

TEST(history_records_block_lifetime) {
  PoolFixture fixture;
  fixture.pool.record_history(10);
  Block* block = fixture.pool.try_allocate(1000, 0, 5);
  fixture.pool.record_stream(block, 1);
  fixture.pool.free(block);
  fixture.pool.complete_free(block->serial);
  fixture.pool.evict(kBase);
  uint64_t lost = 1;
  std::vector<std::tuple<Action, uint64_t, uint32_t>> recorded;
  for (const Entry& entry : fixture.pool.history(&lost)) recorded.emplace_back(entry.action, entry.nbytes, entry.stack);
  const std::vector<std::tuple<Action, uint64_t, uint32_t>> expected = {{Action::Alloc, 1000, 5},
                                                                        {Action::FreeRequested, 1000, 5},
                                                                        {Action::FreeCompleted, 1000, 5},
                                                                        {Action::Release, kSmallSegment, 0}};
  CHECK(recorded == expected);
  CHECK(lost == 0);
}

TEST(tables_list_blocks_by_segment) {
  PoolFixture fixture;
  fixture.pool.adopt(kBase - 20 * kMiB, 20 * kMiB, 3, false);
  fixture.pool.try_allocate(512, 0);
  const auto [segments, blocks] = rows_of(fixture.pool);
  CHECK(segments.size() == 2 && segments[0].queue == 3 && segments[0].small == 0 && segments[1].small == 1);
  CHECK(blocks.size() == 3 && blocks[0].segment == 0 && blocks[1].segment == 1 && blocks[2].segment == 1);
  CHECK(blocks[1].state == 1 && blocks[2].state == 0);
}

TEST(check_finds_wrong_statistics) {
  PoolFixture fixture;
  PoolTest::statistics(fixture.pool).add(kActive, true, 1);
  CHECK(fixture.violation() == "the statistics differ from a recount");
}

TEST(check_finds_lost_live_block) {
  PoolFixture fixture;
  Block* block = fixture.pool.try_allocate(512, 0);
  PoolTest::live(fixture.pool).erase(block);
  CHECK(fixture.violation() == "the live table and the block disagree");
}

TEST(check_finds_gap_between_blocks) {
  PoolFixture fixture;
  fixture.pool.try_allocate(512, 0)->size = 1024;
  CHECK(fixture.violation() == "neighbouring blocks are not adjacent");
}

TEST(check_finds_uncovered_segment) {
  PoolFixture fixture;
  PoolTest::segment(fixture.pool, kBase).size += 512;
  CHECK(fixture.violation() == "the blocks do not cover the segment");
}

TEST(check_finds_overlapping_segments) {
  PoolFixture fixture;
  fixture.pool.adopt(kBase + kSmallSegment, kSmallSegment, 0, true);
  fixture.pool.try_allocate(kMiB, 0);
  fixture.pool.try_allocate(kMiB, 0)->size += 512;
  PoolTest::segment(fixture.pool, kBase).size += 512;
  CHECK(fixture.violation() == "two segments overlap");
}

TEST(check_finds_wrong_pending_entry) {
  PoolFixture fixture;
  Block* block = fixture.pool.try_allocate(512, 0);
  PoolTest::add_pending(fixture.pool, block);
  CHECK(fixture.violation() == "the table of pending frees and the block disagree");
}

TEST(check_finds_free_block_with_users) {
  PoolFixture fixture;
  PoolTest::segment(fixture.pool, kBase).first->users.push_back(1);
  CHECK(fixture.violation() == "a free block has users");
}

TEST(check_finds_wrong_rank) {
  PoolFixture fixture;
  PoolTest::segment(fixture.pool, kBase).first->rank = 7;
  CHECK(fixture.violation() == "a block refers to another segment");
}

TEST(check_finds_unlisted_free_block) {
  PoolFixture fixture;
  Segment& segment = PoolTest::segment(fixture.pool, kBase);
  segment.free_list->erase(segment.first);
  CHECK(fixture.violation() == "the free list and the block disagree");
}

TEST(check_finds_request_larger_than_block) {
  PoolFixture fixture;
  fixture.pool.try_allocate(512, 0)->requested = 513;
  CHECK(fixture.violation() == "a block is smaller than its request");
}

TEST(check_finds_unlinked_neighbours) {
  PoolFixture fixture;
  fixture.pool.try_allocate(512, 0)->next->prev = nullptr;
  CHECK(fixture.violation() == "neighbouring blocks are not linked to each other");
}

TEST(pool_is_thread_safe) {
  Pool pool;
  for (uint64_t queue = 0; queue < 2; ++queue) pool.adopt(kBase + queue * 64 * kMiB, 64 * kMiB, queue, true);
  pool.record_history(1000);
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 8; ++number) {
    threads.emplace_back([&pool, number] {
      std::mt19937_64 chance(number);
      std::vector<Block*> held;
      for (int step = 0; step < 5'000; ++step) {
        if (held.size() < 20 && chance() % 2) {
          if (Block* block = pool.try_allocate(1 + chance() % 8192, number % 2)) held.push_back(block);
        } else if (!held.empty()) {
          std::swap(held[chance() % held.size()], held.back());
          if (chance() % 4 == 0) pool.record_stream(held.back(), 9);
          if (pool.free(held.back())) pool.complete_free(held.back()->serial);
          held.pop_back();
        }
        if (step % 500 == 0) {
          uint64_t lost;
          pool.history(&lost);
          pool.count(kActive, kAllSizes);
          rows_of(pool);
        }
      }
      for (Block* block : held) pool.free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(pool.check_invariants() == nullptr);
  CHECK(pool.count(kActive, kAllSizes).current == 0);
  CHECK(pool.evictable(true).size() + pool.evictable(false).size() == 2);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
