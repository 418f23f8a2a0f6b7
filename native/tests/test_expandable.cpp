// Tests of a pool's expandable segments, partitions and policy.
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "pool/pool.hpp"
#include "pool/tables.hpp"
#include "tests/check.hpp"

namespace forebay {

// Gives tests access to tables that check_invariants() must find corrupted.
struct PoolTest {
  static Segment& segment(Pool& pool, uint64_t address) { return pool.segments_.at(address); }
  static PoolPartition& partition(Pool& pool, uint32_t pool_number) { return *pool.find_partition(pool_number); }
  static uint64_t& expandable_segments(Pool& pool) { return pool.expandable_segments_; }
  static bool& best_fit_only(Pool& pool) { return pool.best_fit_only_; }
};

}  // namespace forebay

using namespace forebay;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBase = 64 * kMiB;
constexpr uint64_t kPage = 20 * kMiB;

Policy expandable_policy() {
  Policy policy;
  policy.expandable = true;
  return policy;
}

struct PoolFixture {
  Pool pool;

  int64_t current(Metric metric) const { return pool.count(metric, kAllSizes).current; }
  bool is_consistent() const { return pool.check_invariants() == nullptr; }
  std::string violation() const {
    const char* invariant = pool.check_invariants();
    return invariant == nullptr ? "" : invariant;
  }
};

// An expandable segment of ten pages of the large class for queue 0.
struct ExpandableFixture : PoolFixture {
  ExpandableFixture() {
    pool.set_policy(expandable_policy());
    pool.adopt_expandable(kBase, 10 * kPage, kPage, 0, false, 0);
  }

  // Allocates as the allocator does: a free block, or one made by committing pages.
  Block* allocate(uint64_t nbytes) {
    if (Block* block = pool.try_allocate(nbytes, 0)) return block;
    const PageRange range = pool.choose_pages(nbytes, 0, 0);
    if (range.address == 0) return nullptr;
    return range.size == 0 ? pool.allocate_at(range.address, nbytes, 0, 0, 0)
                           : pool.commit_done(range.address, nbytes, 0);
  }

  // Decommits all idle pages. Returns the number of ranges.
  size_t shrink() {
    const auto ranges = pool.idle_pages(false, 0);
    for (const PageRange range : ranges) {
      if (pool.begin_decommit(range)) pool.decommit_done(range.address);
    }
    return ranges.size();
  }
};

bool equals(PageRange range, uint64_t address, uint64_t size) { return range.address == address && range.size == size; }

}  // namespace

// Expandable segments

TEST(address_space_counts_as_no_memory) {
  ExpandableFixture fixture;
  CHECK(fixture.current(kReservedBytes) == 0 && fixture.current(kSegment) == 0);
  CHECK(fixture.pool.try_allocate(kMiB, 0) == nullptr);
  CHECK(fixture.pool.evictable(false, 0, true).empty());
  CHECK(fixture.pool.owns(kBase) && rows_of(fixture.pool).segments.empty());
  CHECK(!fixture.pool.evict(kBase) && fixture.is_consistent());
}

TEST(expandable_segment_requires_whole_pages) {
  PoolFixture fixture;
  for (const uint64_t page : {uint64_t{0}, uint64_t{100}, 3 * kMiB}) {
    bool refused = false;
    try {
      fixture.pool.adopt_expandable(kBase, kPage, page, 0, false, 0);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused && !fixture.pool.owns(kBase) && fixture.is_consistent());
  }
}

TEST(choose_pages_returns_missing_pages_only) {
  ExpandableFixture fixture;
  const PageRange range = fixture.pool.choose_pages(25 * kMiB, 0, 0);
  CHECK(equals(range, kBase, 2 * kPage));
  CHECK(fixture.current(kReservedBytes) == 0 && fixture.is_consistent());
  Block* block = fixture.pool.commit_done(range.address, 25 * kMiB, 0);
  CHECK(block->address == kBase && block->size == 25 * kMiB && block->untouched);
  CHECK(fixture.current(kReservedBytes) == static_cast<int64_t>(2 * kPage) && fixture.current(kSegment) == 0);
  CHECK(fixture.current(kInactiveSplit) == 0);  // as in PyTorch
  Block* next = fixture.allocate(40 * kMiB);    // 15 MiB are committed already
  CHECK(next->address == block->address + block->size);
  CHECK(fixture.current(kReservedBytes) == static_cast<int64_t>(4 * kPage) && fixture.is_consistent());
}

TEST(committed_page_may_serve_another_request) {
  ExpandableFixture fixture;
  const PageRange range = fixture.pool.choose_pages(10 * kMiB, 0, 0);
  CHECK(fixture.pool.try_allocate(kMiB + 1, 0) == nullptr);  // not allocatable while in transition
  CHECK(fixture.pool.commit_done(range.address, 0, 0) == nullptr);
  CHECK(fixture.pool.try_allocate(2 * kMiB, 0)->address == kBase);
  const PageRange committed = fixture.pool.choose_pages(18 * kMiB, 0, 0);
  CHECK(equals(committed, kBase + 2 * kMiB, 0));
  CHECK(fixture.pool.allocate_at(committed.address, 18 * kMiB, 0, 0, 0) != nullptr);
  CHECK(fixture.pool.allocate_at(committed.address, 18 * kMiB, 0, 0, 0) == nullptr);
  CHECK(fixture.is_consistent());
}

TEST(concurrent_requests_get_different_pages) {
  ExpandableFixture fixture;
  const PageRange first = fixture.pool.choose_pages(kPage, 0, 0), second = fixture.pool.choose_pages(kPage, 0, 0);
  CHECK(equals(first, kBase, kPage) && equals(second, kBase + kPage, kPage));
  CHECK(fixture.is_consistent());
  CHECK(fixture.pool.commit_done(second.address, kPage, 0)->address == second.address);
  CHECK(fixture.pool.commit_done(first.address, kPage, 0)->address == first.address);
  CHECK(fixture.is_consistent());
}

TEST(begin_commit_accepts_only_uncommitted_ranges) {  // as the replay of a history does
  ExpandableFixture fixture;
  CHECK(fixture.pool.begin_commit({kBase + 2 * kPage, kPage}) && fixture.is_consistent());
  CHECK(!fixture.pool.begin_commit({kBase + 2 * kPage, kPage}) &&
        !fixture.pool.begin_commit({kBase, 3 * kPage}));  // in transition
  CHECK(!fixture.pool.begin_commit({kBase, 0}) && !fixture.pool.begin_commit({kBase, 512}) &&
        !fixture.pool.begin_commit({kBase + 512, kPage}));
  CHECK(!fixture.pool.begin_commit({0, kPage}) && !fixture.pool.begin_commit({kBase + 9 * kPage, 2 * kPage}));
  CHECK(fixture.pool.commit_done(kBase + 2 * kPage, kPage, 0)->address == kBase + 2 * kPage);
  CHECK(!fixture.pool.begin_commit({kBase + 2 * kPage, kPage}));
  CHECK(fixture.pool.begin_commit({kBase, 2 * kPage}) && fixture.pool.begin_commit({kBase + 3 * kPage, 7 * kPage}) &&
        fixture.is_consistent());
  fixture.pool.rollback(kBase);
  CHECK(fixture.pool.begin_commit({kBase + kPage, kPage}) && fixture.is_consistent());
}

TEST(choose_pages_reports_missing_address_space) {
  ExpandableFixture fixture;
  CHECK(equals(fixture.pool.choose_pages(10 * kPage + 1, 0, 0), 0, 0));
  CHECK(equals(fixture.pool.choose_pages(kMiB, 0, 0), 0, 0));      // of the small class
  CHECK(equals(fixture.pool.choose_pages(2 * kMiB, 1, 0), 0, 0));  // another queue's
  CHECK(equals(fixture.pool.choose_pages(10 * kPage, 0, 0), kBase, 10 * kPage));
  CHECK(equals(fixture.pool.choose_pages(2 * kMiB, 0, 0), 0, 0));  // all of it is in transition
  CHECK(fixture.is_consistent());
}

TEST(rollback_of_commit_restores_uncommitted_range) {
  ExpandableFixture fixture;
  Block* block = fixture.allocate(kPage);
  const PageRange range = fixture.pool.choose_pages(2 * kPage, 0, 0), other = fixture.pool.choose_pages(kPage, 0, 0);
  fixture.pool.rollback(range.address);
  CHECK(fixture.is_consistent());
  fixture.pool.rollback(other.address);
  CHECK(fixture.is_consistent() && fixture.current(kReservedBytes) == static_cast<int64_t>(kPage));
  CHECK(equals(fixture.pool.choose_pages(9 * kPage, 0, 0), kBase + kPage, 9 * kPage));
  CHECK(block->next->state == State::Committing);
}

TEST(only_whole_pages_are_decommitted) {
  ExpandableFixture fixture;
  Block* first = fixture.allocate(5 * kMiB);
  Block* second = fixture.allocate(80 * kMiB);
  Block* third = fixture.allocate(5 * kMiB);
  CHECK(third->address == kBase + 85 * kMiB && fixture.current(kReservedBytes) == static_cast<int64_t>(5 * kPage));
  fixture.pool.free(second);
  const auto idle = fixture.pool.idle_pages(false, 0);
  CHECK(idle.size() == 1 && equals(idle[0], kBase + kPage, 3 * kPage));
  CHECK(fixture.pool.begin_decommit(idle[0]));
  CHECK(!fixture.pool.begin_decommit(idle[0]));
  CHECK(fixture.current(kReservedBytes) == static_cast<int64_t>(5 * kPage) &&
        fixture.is_consistent());  // still in transition
  CHECK(fixture.pool.try_allocate(16 * kMiB, 0) == nullptr);
  CHECK(!fixture.pool.decommit_done(idle[0].address));
  CHECK(fixture.current(kReservedBytes) == static_cast<int64_t>(2 * kPage) && fixture.is_consistent());
  CHECK(fixture.pool.try_allocate(15 * kMiB, 0)->address ==
        kBase + 5 * kMiB);  // 15 MiB are left on the left side, 5 MiB on the right
  CHECK(fixture.pool.try_allocate(5 * kMiB, 0)->address == kBase + 4 * kPage);
  CHECK(first->size == 5 * kMiB && fixture.is_consistent());
}

TEST(committed_page_merges_with_free_neighbours) {
  ExpandableFixture fixture;
  Block* first = fixture.allocate(15 * kMiB);
  Block* second = fixture.allocate(30 * kMiB);
  Block* third = fixture.allocate(15 * kMiB);
  fixture.pool.free(second);
  CHECK(fixture.shrink() == 1);  // the middle page
  const PageRange range = fixture.pool.choose_pages(30 * kMiB, 0, 0);
  CHECK(equals(range, kBase + kPage, kPage));
  CHECK(fixture.pool.commit_done(range.address, 30 * kMiB, 0)->address == first->address + first->size);
  CHECK(fixture.current(kReservedBytes) == static_cast<int64_t>(3 * kPage) && third->prev->size == 30 * kMiB &&
        fixture.is_consistent());
}

TEST(rollback_of_decommit_frees_pages_again) {
  ExpandableFixture fixture;
  fixture.pool.free(fixture.allocate(30 * kMiB));
  const auto idle = fixture.pool.idle_pages(false, 0);
  CHECK(idle.size() == 1 && fixture.pool.begin_decommit(idle[0]));
  fixture.pool.rollback(idle[0].address);
  CHECK(fixture.is_consistent() && fixture.current(kReservedBytes) == static_cast<int64_t>(2 * kPage));
  CHECK(fixture.pool.try_allocate(2 * kPage, 0)->address == kBase);
}

TEST(expandable_segment_is_evicted_when_uncommitted) {
  ExpandableFixture fixture;
  Block* block = fixture.allocate(2 * kPage);
  CHECK(!fixture.pool.evict_expandable(kBase));
  fixture.pool.free(block);
  CHECK(!fixture.pool.evict_expandable(kBase) && !fixture.pool.evict(kBase));
  CHECK(fixture.pool.begin_decommit({kBase + kPage, kPage}));
  CHECK(!fixture.pool.decommit_done(kBase + kPage) && fixture.pool.begin_decommit({kBase, kPage}));
  CHECK(!fixture.pool.evict_expandable(kBase));
  CHECK(fixture.pool.decommit_done(kBase) && fixture.is_consistent());
  CHECK(!fixture.pool.evict_expandable(kBase + kPage) && fixture.pool.evict_expandable(kBase) &&
        !fixture.pool.evict_expandable(kBase));
  CHECK(!fixture.pool.owns(kBase) && fixture.current(kReservedBytes) == 0 && fixture.is_consistent());
}

TEST(begin_decommit_requires_whole_free_pages) {
  ExpandableFixture fixture;
  Block* block = fixture.allocate(kPage + 512);
  CHECK(!fixture.pool.begin_decommit({kBase, kPage}));          // in use
  CHECK(!fixture.pool.begin_decommit({kBase + kPage, kPage}));  // partly in use
  fixture.pool.free(block);
  CHECK(!fixture.pool.begin_decommit({kBase, 512}));          // less than a page
  CHECK(!fixture.pool.begin_decommit({kBase + 512, kPage}));  // unaligned
  CHECK(!fixture.pool.begin_decommit({kBase, 0}));
  CHECK(!fixture.pool.begin_decommit({kBase + kPage, 2 * kPage}));  // partly uncommitted
  CHECK(!fixture.pool.begin_decommit({kBase, ~uint64_t{0} / kPage * kPage}));
  CHECK(!fixture.pool.begin_decommit({kBase - kPage, kPage}) && !fixture.pool.begin_decommit({0, kPage}));
  fixture.pool.adopt(1024 * kBase, 2 * kPage, 0, false);  // not expandable
  CHECK(!fixture.pool.begin_decommit({1024 * kBase, kPage}));
  CHECK(fixture.is_consistent() && fixture.pool.begin_decommit({kBase, 2 * kPage}) && fixture.is_consistent());
}

TEST(completing_unknown_transition_has_no_effect) {
  ExpandableFixture fixture;
  Block* block = fixture.allocate(kPage);
  for (const uint64_t address : {uint64_t{0}, kBase, kBase + 512, kBase + kPage, 99 * kBase}) {
    CHECK(fixture.pool.commit_done(address, kMiB, 0) == nullptr);
    CHECK(!fixture.pool.decommit_done(address));
    fixture.pool.rollback(address);
    CHECK(fixture.pool.allocate_at(address, 0, 0, 0, 0) == nullptr);
    CHECK(fixture.pool.allocate_at(address, kMaxRequest, 0, 0, 0) == nullptr);
  }
  CHECK(block->state == State::Live && fixture.current(kReservedBytes) == static_cast<int64_t>(kPage) &&
        fixture.is_consistent());
}

TEST(block_with_least_room_to_grow_is_preferred) {  // as PyTorch keeps large ranges together
  ExpandableFixture fixture;
  Block* first = fixture.allocate(kPage);
  Block* second = fixture.allocate(kPage);
  Block* third = fixture.allocate(kPage);
  fixture.pool.free(third);  // followed by seven uncommitted pages
  fixture.pool.free(first);  // followed by a live block
  CHECK(fixture.pool.try_allocate(kPage, 0) == first);
  CHECK(second->state == State::Live && fixture.is_consistent());
}

TEST(expandable_blocks_need_expandable_policy) {
  ExpandableFixture fixture;
  fixture.pool.free(fixture.allocate(kPage));
  fixture.pool.set_policy(Policy{});
  CHECK(fixture.pool.try_allocate(kPage, 0) == nullptr);
  fixture.pool.adopt(1024 * kBase, kPage, 0, false);
  CHECK(fixture.pool.try_allocate(kPage, 0)->address == 1024 * kBase);
  fixture.pool.set_policy(expandable_policy());
  CHECK(fixture.pool.try_allocate(kPage, 0)->address == kBase && fixture.is_consistent());
}

TEST(pending_block_keeps_its_pages) {
  ExpandableFixture fixture;
  Block* block = fixture.allocate(kPage);
  fixture.pool.record_stream(block, 3);
  CHECK(fixture.pool.free(block) && fixture.pool.idle_pages(false, 0).empty());
  CHECK(!fixture.pool.begin_decommit({kBase, kPage}) && fixture.is_consistent());
  CHECK(fixture.pool.complete_free(block->serial) && fixture.pool.idle_pages(false, 0).size() == 1);
}

TEST(history_records_map_and_unmap) {
  ExpandableFixture fixture;
  fixture.pool.record_history(10);
  fixture.pool.free(fixture.allocate(kPage));
  fixture.shrink();
  uint64_t lost = 0;
  std::vector<std::tuple<Action, uint64_t, uint64_t>> recorded;
  for (const Entry& entry : fixture.pool.history(&lost))
    recorded.emplace_back(entry.action, entry.address, entry.nbytes);
  const std::vector<std::tuple<Action, uint64_t, uint64_t>> expected = {{Action::Map, kBase, kPage},
                                                                        {Action::Alloc, kBase, kPage},
                                                                        {Action::FreeRequested, kBase, kPage},
                                                                        {Action::FreeCompleted, kBase, kPage},
                                                                        {Action::Unmap, kBase, kPage}};
  CHECK(recorded == expected && lost == 0);
}

TEST(each_committed_run_is_a_segment_row) {
  ExpandableFixture fixture;
  Block* first = fixture.allocate(kPage);
  Block* second = fixture.allocate(2 * kPage);
  fixture.allocate(kPage);
  fixture.pool.free(second);
  CHECK(fixture.pool.begin_decommit({kBase + kPage, kPage}));
  auto [segments, blocks] = rows_of(fixture.pool);
  CHECK(segments.size() == 1 && segments[0].nbytes == 4 * kPage &&
        segments[0].expandable == 1);  // the range is still in transition
  fixture.pool.decommit_done(kBase + kPage);
  const Rows rows = rows_of(fixture.pool);
  CHECK(rows.segments.size() == 2 && rows.segments[0].address == kBase && rows.segments[0].nbytes == kPage);
  CHECK(rows.segments[1].address == kBase + 2 * kPage && rows.segments[1].nbytes == 2 * kPage);
  CHECK(rows.blocks.size() == 3 && rows.blocks[2].segment == 1 && first->next->state == State::Uncommitted);
}

TEST(random_operations_keep_expandable_pool_consistent) {  // with random failures to commit or decommit
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 chance(seed);
    ExpandableFixture fixture;
    std::vector<Block*> held;
    std::vector<uint64_t> committing, decommitting;
    const auto remove_random = [&](auto& from) {
      std::swap(from[chance() % from.size()], from.back());
      const auto found = from.back();
      from.pop_back();
      return found;
    };
    for (int step = 0; step < 4'000; ++step) {
      const uint64_t nbytes = chance() % 3 ? kMiB + 1 + chance() % kPage : kMiB + 1 + chance() % (4 * kPage);
      switch (chance() % 6) {
        case 0:
          if (const PageRange range = fixture.pool.choose_pages(nbytes, 0, 0); range.size > 0) {
            committing.push_back(range.address);
          } else if (range.address != 0) {
            held.push_back(fixture.pool.allocate_at(range.address, nbytes, 0, 0, 0));
            CHECK(held.back() != nullptr);
          }
          break;
        case 1:
          if (committing.empty()) break;
          if (const uint64_t address = remove_random(committing); chance() % 4 == 0) {
            fixture.pool.rollback(address);
          } else if (Block* block = fixture.pool.commit_done(address, nbytes, 0)) {
            held.push_back(block);
          }
          break;
        case 2:
          for (const PageRange range : fixture.pool.idle_pages(false, 0)) {
            if (chance() % 2 && fixture.pool.begin_decommit(range)) decommitting.push_back(range.address);
          }
          break;
        case 3:
          if (decommitting.empty()) break;
          if (const uint64_t address = remove_random(decommitting); chance() % 4 == 0) {
            fixture.pool.rollback(address);
          } else {
            fixture.pool.decommit_done(address);
          }
          break;
        case 4:
          if (Block* block = fixture.pool.try_allocate(nbytes, 0)) held.push_back(block);
          break;
        default:
          if (!held.empty()) fixture.pool.free(remove_random(held));
      }
      CHECK(fixture.is_consistent());
    }
    for (const uint64_t address : committing) fixture.pool.rollback(address);
    for (const uint64_t address : decommitting) fixture.pool.decommit_done(address);
    for (Block* block : held) fixture.pool.free(block);
    fixture.shrink();
    CHECK(fixture.current(kReservedBytes) == 0 && fixture.current(kActive) == 0);
    CHECK(fixture.pool.evict_expandable(kBase) && fixture.is_consistent());
  }
}

// Partitions

TEST(partition_does_not_share_blocks) {
  PoolFixture fixture;
  fixture.pool.create_pool(7, true);
  fixture.pool.adopt(kBase, kSmallSegment, 0, true, 0, Pool::kNextRank, 7);
  CHECK(fixture.pool.try_allocate(512, 0) == nullptr);
  CHECK(fixture.pool.try_allocate(512, 0, 0, 8) == nullptr);  // there is no partition 8
  Block* block = fixture.pool.try_allocate(512, 0, 0, 7);
  CHECK(block->address == kBase);
  CHECK(fixture.pool.evictable(true).empty());
  CHECK(fixture.pool.free_bytes(7) == kSmallSegment - 512 && fixture.pool.free_bytes(0) == 0 &&
        fixture.pool.free_bytes(8) == 0);
  fixture.pool.free(block);
  CHECK(fixture.pool.try_allocate(512, 0) == nullptr);
  CHECK(fixture.pool.evictable(true, 7).size() == 1 && fixture.is_consistent());
}

TEST(partition_counts_reserved_memory) {
  PoolFixture fixture;
  fixture.pool.create_pool(1, true);
  fixture.pool.adopt(kBase, kSmallSegment, 0, true, 0, Pool::kNextRank, 1);
  fixture.pool.adopt(2 * kBase, kPage, 0, false);
  const Stat count = fixture.pool.reserved_by(1, kAllSizes);
  CHECK(count.current == static_cast<int64_t>(kSmallSegment) && count.allocated == count.current && count.freed == 0);
  CHECK(fixture.pool.reserved_by(1, kLargeClass).current == 0 && fixture.pool.reserved_by(9, kAllSizes).allocated == 0);
  CHECK(fixture.pool.evict(kBase));
  CHECK(fixture.pool.reserved_by(1, kAllSizes).current == 0 &&
        fixture.pool.reserved_by(1, kAllSizes).peak == count.peak);
  fixture.pool.reset_peaks();
  fixture.pool.reset_accumulated();
  CHECK(fixture.pool.reserved_by(1, kAllSizes).peak == 0 && fixture.pool.reserved_by(1, kAllSizes).freed == 0 &&
        fixture.is_consistent());
}

TEST(partition_is_removed_when_empty) {
  PoolFixture fixture;
  CHECK(!fixture.pool.remove_pool(1));
  fixture.pool.create_pool(1, true);
  fixture.pool.adopt(kBase, kSmallSegment, 0, true, 0, Pool::kNextRank, 1);
  CHECK(!fixture.pool.remove_pool(1));
  fixture.pool.evict(kBase);
  CHECK(fixture.pool.remove_pool(1) && fixture.is_consistent());
  CHECK(fixture.pool.reserved_by(1, kAllSizes).allocated ==
        static_cast<int64_t>(kSmallSegment));  // its statistics are kept
}

TEST(partition_without_splits_allocates_whole_blocks) {
  PoolFixture fixture;
  fixture.pool.create_pool(1, false);
  fixture.pool.adopt(kBase, kSmallSegment, 0, true, 0, Pool::kNextRank, 1);
  CHECK(fixture.pool.try_allocate(512, 0, 0, 1)->size == kSmallSegment);
  CHECK(fixture.current(kInactiveSplit) == 0 && fixture.is_consistent());
}

TEST(deferred_free_reports_pool_number) {
  PoolFixture fixture;
  fixture.pool.create_pool(5, true);
  fixture.pool.adopt(kBase, kSmallSegment, 0, true, 0, Pool::kNextRank, 5);
  Block* block = fixture.pool.try_allocate(512, 0, 0, 5);
  fixture.pool.record_stream(block, 2);
  fixture.pool.free(block);
  const auto deferred = fixture.pool.deferred();
  CHECK(deferred.size() == 1 && deferred[0].pool_number == 5 && deferred[0].users == std::vector<uint64_t>{2});
}

TEST(partition_supports_expandable_segments) {
  PoolFixture fixture;
  fixture.pool.set_policy(expandable_policy());
  fixture.pool.create_pool(1, true);
  fixture.pool.adopt_expandable(kBase, 4 * kPage, kPage, 0, false, 1);
  CHECK(equals(fixture.pool.choose_pages(2 * kMiB, 0, 0), 0, 0));
  const PageRange range = fixture.pool.choose_pages(2 * kMiB, 0, 1);
  CHECK(equals(range, kBase, kPage));
  fixture.pool.free(fixture.pool.commit_done(range.address, 2 * kMiB, 0));
  CHECK(fixture.pool.reserved_by(1, kAllSizes).current == static_cast<int64_t>(kPage) && fixture.is_consistent());
  CHECK(fixture.pool.idle_pages(false, 0).empty() && fixture.pool.idle_pages(false, 1).size() == 1);
  CHECK(fixture.pool.begin_decommit(range) && fixture.pool.decommit_done(kBase) && !fixture.pool.remove_pool(1));
  CHECK(fixture.pool.evict_expandable(kBase) && fixture.pool.remove_pool(1) && fixture.is_consistent());
}

// Policy

TEST(sizes_are_rounded_to_power_of_two_divisions) {
  Policy policy;
  policy.divisions.fill(4);
  policy.has_divisions = true;
  CHECK(policy.block_size(1) == 512 && policy.block_size(1200) == 1536);  // too small to be divided
  CHECK(policy.block_size(4097) == 5 * 1024 && policy.block_size(5 * kMiB) == 5 * kMiB);
  CHECK(policy.block_size(5 * kMiB + 1) == 6 * kMiB);
  policy.divisions[2] = 1;  // 4 MiB up to 8
  CHECK(policy.block_size(5 * kMiB + 1) == 5 * kMiB + 512);
  policy.divisions[0] = 0;  // 1 MiB and all below
  CHECK(policy.block_size(4097) == 4608);
}

TEST(block_size_follows_policy) {
  PoolFixture fixture;
  Policy policy;
  policy.divisions.fill(2);
  policy.has_divisions = true;
  fixture.pool.set_policy(policy);
  fixture.pool.adopt(kBase, kSmallSegment, 0, true);
  Block* block = fixture.pool.try_allocate(5000, 0);
  CHECK(block->size == 6144 && block->requested == 5000 && fixture.is_consistent());
  fixture.pool.set_policy(Policy{});
  CHECK(fixture.pool.try_allocate(5000, 0)->size == 5120 && block->size == 6144 && fixture.is_consistent());
}

TEST(blocks_of_max_split_are_not_split) {
  PoolFixture fixture;
  Policy policy;
  policy.max_split = 40 * kMiB;
  fixture.pool.set_policy(policy);
  fixture.pool.adopt(kBase, 60 * kMiB, 0, false);
  CHECK(fixture.pool.try_allocate(30 * kMiB, 0) == nullptr);  // nor do they serve smaller requests
  CHECK(fixture.pool.try_allocate(40 * kMiB, 0) == nullptr);  // 20 MiB would be wasted
  Block* block = fixture.pool.try_allocate(40 * kMiB + 512, 0);
  CHECK(block->size == 60 * kMiB);
  CHECK(fixture.pool.oversize(false).current == 1 && fixture.pool.oversize(true).current == 1);
  fixture.pool.free(block);
  policy.max_non_split_rounding = 20 * kMiB + 512;
  fixture.pool.set_policy(policy);
  fixture.pool.free(fixture.pool.try_allocate(40 * kMiB, 0));
  CHECK(fixture.pool.evict(kBase) && fixture.is_consistent());
  const Stat blocks = fixture.pool.oversize(false), segments = fixture.pool.oversize(true);
  CHECK(blocks.current == 0 && blocks.peak == 1 && blocks.allocated == 2 && blocks.freed == 2);
  CHECK(segments.current == 0 && segments.allocated == 1 && segments.freed == 1);
  fixture.pool.reset_peaks();
  fixture.pool.reset_accumulated();
  CHECK(fixture.pool.oversize(false).peak == 0 && fixture.pool.oversize(true).freed == 0);
}

TEST(blocks_below_max_split_are_split) {
  PoolFixture fixture;
  Policy policy;
  policy.max_split = 40 * kMiB;
  fixture.pool.set_policy(policy);
  fixture.pool.adopt(kBase, kPage, 0, false);
  CHECK(fixture.pool.try_allocate(2 * kMiB, 0)->size == 2 * kMiB);
  CHECK(fixture.pool.oversize(false).allocated == 0 && fixture.pool.oversize(true).allocated == 0 &&
        fixture.is_consistent());
}

TEST(segment_size_follows_policy) {
  Policy policy;
  CHECK(policy.segment_size(512) == kSmallSegment && policy.segment_size(2 * kMiB) == kLargeSegment);
  CHECK(policy.segment_size(11 * kMiB) == 12 * kMiB);
  policy.large_segment = 12 * kMiB;
  CHECK(policy.segment_size(2 * kMiB) == 12 * kMiB && policy.segment_size(10 * kMiB) == 10 * kMiB);
  policy.exact_segments = true;
  CHECK(policy.segment_size(700 * 1024) == 2100 * 1024 + 12 * 1024);  // three blocks, in steps of 64 KiB
  CHECK(policy.segment_size(5 * kMiB) == 5 * kMiB);
}

TEST(free_segments_age_with_each_request) {
  PoolFixture fixture;
  Policy policy;
  policy.track_age = true;
  fixture.pool.set_policy(policy);
  fixture.pool.adopt(kBase, kPage, 0, false);
  Block* block = fixture.pool.try_allocate(kPage, 0);
  for (int i = 0; i < 3; ++i) fixture.pool.try_allocate(2 * kMiB, 0);
  fixture.pool.free(block);
  CHECK(fixture.pool.evictable(false)[0].age == 0);
  fixture.pool.try_allocate(kMiB, 0);       // the small class has its own clock
  fixture.pool.try_allocate(30 * kMiB, 5);  // any queue's request counts
  fixture.pool.try_allocate(30 * kMiB, 0);
  CHECK(fixture.pool.evictable(false)[0].age == 2 && !fixture.pool.evictable(false)[0].expandable);
  fixture.pool.set_policy(Policy{});
  fixture.pool.try_allocate(30 * kMiB, 0);
  CHECK(fixture.pool.evictable(false)[0].age == 2 && fixture.is_consistent());
}

TEST(adopt_and_allocate_serves_its_caller) {
  PoolFixture fixture;
  Block* block = fixture.pool.adopt_and_allocate(2 * kMiB, kBase, kPage, 0, 0, 0);
  CHECK(block->address == kBase && block->size == 2 * kMiB &&
        fixture.current(kReservedBytes) == static_cast<int64_t>(kPage));
  CHECK(fixture.pool.adopt_and_allocate(2 * kPage, 2 * kBase, kPage, 0, 0, 0) == nullptr);  // too small, but adopted
  CHECK(fixture.pool.adopt_and_allocate(0, 3 * kBase, kPage, 0, 0, 0) == nullptr);
  CHECK(fixture.pool.evictable(false).size() == 1 && fixture.pool.evictable(true).size() == 1 &&
        fixture.is_consistent());
}

// Corruption that check_invariants() finds

TEST(check_finds_unlisted_uncommitted_range) {
  ExpandableFixture fixture;
  PoolTest::segment(fixture.pool, kBase).free_list->uncommitted.clear();
  CHECK(fixture.violation() == "the table of uncommitted ranges and the block disagree");
}

TEST(check_finds_listed_committed_block) {
  ExpandableFixture fixture;
  Block* block = fixture.allocate(kPage);
  block->segment->free_list->uncommitted.emplace(block->address, block);
  CHECK(fixture.violation() == "the table of uncommitted ranges and the block disagree");
}

TEST(check_finds_stray_uncommitted_range) {
  ExpandableFixture fixture;
  Block stray;
  PoolTest::segment(fixture.pool, kBase).free_list->uncommitted.emplace(512, &stray);
  CHECK(fixture.violation() == "a table of uncommitted ranges holds one that is in no segment");
}

TEST(check_finds_unmerged_uncommitted_ranges) {
  ExpandableFixture fixture;
  fixture.pool.choose_pages(kPage, 0, 0);
  Segment& segment = PoolTest::segment(fixture.pool, kBase);
  segment.first->state = State::Uncommitted;
  segment.free_list->uncommitted.emplace(kBase, segment.first);
  CHECK(fixture.violation() == "two neighbouring uncommitted ranges were not merged");
}

TEST(check_finds_range_of_partial_pages) {
  ExpandableFixture fixture;
  PoolTest::segment(fixture.pool, kBase).page_size = 3 * kPage;
  CHECK(fixture.violation() == "an uncommitted range does not consist of whole pages");
}

TEST(check_finds_transition_in_plain_segment) {
  PoolFixture fixture;
  fixture.pool.adopt(kBase, kPage, 0, false);
  Segment& segment = PoolTest::segment(fixture.pool, kBase);
  segment.free_list->erase(segment.first);
  segment.first->state = State::Decommitting;
  CHECK(fixture.violation() == "an uncommitted range in a segment that is not expandable");
}

TEST(check_finds_transition_with_users) {
  ExpandableFixture fixture;
  fixture.pool.choose_pages(kPage, 0, 0);
  PoolTest::segment(fixture.pool, kBase).first->users.push_back(1);
  CHECK(fixture.violation() == "an uncommitted range has users");
}

TEST(check_finds_uncounted_memory) {
  ExpandableFixture fixture;
  fixture.pool.choose_pages(kPage, 0, 0);
  PoolTest::segment(fixture.pool, kBase).first->state = State::Decommitting;
  CHECK(fixture.violation() == "the reserved bytes of a partition differ from a recount");
}

TEST(check_finds_wrong_partition_counter) {
  PoolFixture fixture;
  fixture.pool.create_pool(1, true);
  PoolTest::partition(fixture.pool, 1).reserved.add(true, 512);
  CHECK(fixture.violation() == "the reserved bytes of a partition differ from a recount");
}

TEST(check_finds_segment_in_wrong_list) {
  PoolFixture fixture;
  fixture.pool.create_pool(1, true);
  fixture.pool.adopt(kBase, kPage, 0, false);
  PoolTest::segment(fixture.pool, kBase).queue = 4;
  CHECK(fixture.violation() == "a segment is in the free list of another queue");
}

TEST(check_finds_wrong_expandable_count) {
  ExpandableFixture fixture;
  ++PoolTest::expandable_segments(fixture.pool);
  CHECK(fixture.violation() == "the number of expandable segments differs from a recount");
}

TEST(check_finds_outdated_policy_cache) {
  ExpandableFixture fixture;
  PoolTest::best_fit_only(fixture.pool) = true;
  CHECK(fixture.violation() == "the cached best_fit_only_ is outdated");
}

// Threads

// All operations that threads may run concurrently: expandable and plain segments, partitions, borrowing, pending
// frees, policy changes.
TEST(expandable_pool_is_thread_safe) {
  Pool pool;
  pool.set_policy(expandable_policy());
  for (const uint32_t pool_number : {1, 2}) pool.create_pool(pool_number, pool_number == 1);
  for (uint64_t number = 0; number < 3; ++number)  // of pools 0 to 2
    pool.adopt_expandable((1 + number) * 100 * kPage, 8 * kPage, kPage, 0, false, static_cast<uint32_t>(number));
  pool.record_history(1000);
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 8; ++number) {
    threads.emplace_back([&pool, number] {
      std::mt19937_64 chance(number);
      const uint32_t pool_number = static_cast<uint32_t>(number % 3), own = static_cast<uint32_t>(10 + number);
      const uint64_t plain = (1000 + number) * 100 * kPage;  // address of a plain segment, present or not
      bool adopted = false;
      std::vector<Block*> held;
      for (int step = 0; step < 2'000; ++step) {
        const uint64_t nbytes = kMiB + 1 + chance() % (2 * kPage);
        if (held.size() < 4 && chance() % 2) {
          const uint32_t source = static_cast<uint32_t>(chance() % 3);
          Block* block = source == pool_number ? pool.try_allocate(nbytes, 0, 0, pool_number)
                                               : pool.try_allocate(nbytes, 0, 0, source, true);
          if (block == nullptr) {
            const PageRange range = pool.choose_pages(nbytes, 0, pool_number);
            if (range.size > 0 && chance() % 8 == 0) {
              pool.rollback(range.address);
            } else if (range.address != 0) {
              block = range.size == 0 ? pool.allocate_at(range.address, nbytes, 0, 0, pool_number)
                                      : pool.commit_done(range.address, nbytes, 0);
            }
          }
          if (block != nullptr) held.push_back(block);
        } else if (!held.empty()) {
          std::swap(held[chance() % held.size()], held.back());
          if (chance() % 4 == 0) pool.record_stream(held.back(), 9);
          pool.free(held.back());
          held.pop_back();
        }
        if (chance() % 8 == 0) {
          for (const DeferredFree& deferred : pool.deferred()) {  // of any thread
            pool.acknowledge_deferred(deferred.serial);
            pool.complete_free(deferred.serial);
          }
        }
        if (chance() % 16 == 0) {
          if (adopted) {
            adopted = !pool.evict(plain);
          } else if (Block* block = pool.adopt_and_allocate(nbytes, plain, 2 * kPage, 0, 0, pool_number)) {
            adopted = true;
            held.push_back(block);
          } else {
            adopted = true;  // but too small for the request
          }
        }
        if (chance() % 64 == 0) {
          Policy policy = expandable_policy();
          policy.track_age = chance() % 2 == 0;
          policy.max_split = chance() % 2 == 0 ? kUnlimited : kPage;
          policy.expandable = chance() % 4 != 0;
          pool.set_policy(policy);
          pool.create_pool(own, true);
          pool.remove_pool(own);
        }
        if (chance() % 16 == 0) {
          for (const PageRange range : pool.idle_pages(false, pool_number)) {
            if (!pool.begin_decommit(range)) continue;
            if (chance() % 4 == 0) {
              pool.rollback(range.address);
            } else {
              pool.decommit_done(range.address);
            }
          }
        }
        if (step % 200 == 0) {
          pool.evictable(false, pool_number, true, true);
          pool.record_history(step % 400 == 0 ? 100 : 1000, true, 0, true);
          pool.reserved_by(pool_number, kAllSizes);
          pool.free_bytes(pool_number);
          rows_of(pool);
        }
      }
      for (Block* block : held) pool.free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(pool.check_invariants() == nullptr);
  for (const DeferredFree& deferred : pool.deferred()) CHECK(pool.complete_free(deferred.serial));
  for (uint64_t number = 0; number < 8; ++number) {
    pool.evict((1000 + number) * 100 * kPage);
    CHECK(!pool.owns((1000 + number) * 100 * kPage));
  }
  for (uint64_t number = 0; number < 3; ++number) {
    for (const PageRange range : pool.idle_pages(false, static_cast<uint32_t>(number))) {
      CHECK(pool.begin_decommit(range));
      pool.decommit_done(range.address);
    }
    CHECK(pool.evict_expandable((1 + number) * 100 * kPage));
  }
  CHECK(pool.count(kReservedBytes, kAllSizes).current == 0 && pool.check_invariants() == nullptr);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
