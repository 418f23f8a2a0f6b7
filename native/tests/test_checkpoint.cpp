// Tests of a pool's checkpoints.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pool/pool.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBase = 64 * kMiB;
constexpr uint32_t kPrivate = 7;

using Rows = std::vector<std::tuple<uint64_t, uint64_t, bool>>;  // address, size and liveness of each block

// A pool with a partition of one segment of each size class, and one segment of the default partition.
struct Fixture {
  Pool pool;

  Fixture() {
    pool.create_pool(kPrivate, true);
    pool.adopt(kBase, kSmallSegment, 0, true, 0, Pool::kNextRank, kPrivate);
    pool.adopt(2 * kBase, kLargeSegment, 0, false, 0, Pool::kNextRank, kPrivate);
    pool.adopt(3 * kBase, kSmallSegment, 0, true);
  }

  Block* allocate(uint64_t nbytes) { return pool.try_allocate(nbytes, 0, 0, kPrivate); }
  Restored restore(const Checkpoint& saved) { return pool.restore(kPrivate, saved, 0, 0); }
  int64_t current(Metric metric) const { return pool.count(metric, kAllSizes).current; }

  Rows rows(uint32_t pool_number = kPrivate) const {
    Rows found;
    bool own = false;
    pool.walk([&](const Segment& segment) { own = segment.free_list->partition->pool_number == pool_number; },
              [&](const Block& block) {
                if (own && block.state <= State::PendingFree)
                  found.emplace_back(block.address, block.size, block.state == State::Live);
              });
    return found;
  }

  std::string error(const Checkpoint& saved) {
    const Rows before = rows();
    try {
      restore(saved);
    } catch (const std::runtime_error& caught) {
      CHECK(rows() == before);
      CHECK(pool.check_invariants() == nullptr);
      return caught.what();
    }
    return "";
  }
};

}  // namespace

TEST(restored_blocks_are_those_of_the_checkpoint) {
  Fixture f;
  std::vector<Block*> held;
  for (uint64_t size : {512, 1024, 512, 4096, 512}) held.push_back(f.allocate(size));
  f.pool.free(held[1]);
  f.pool.free(held[3]);
  const Rows expected = f.rows();
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  f.pool.free(held[0]);
  f.pool.free(held[2]);
  f.allocate(100000);
  const Restored restored = f.restore(saved);
  CHECK(f.rows() == expected);
  CHECK(restored.moved.empty());  // the test sets no owners
  CHECK(restored.unowned == f.pool.live_addresses(kPrivate));
  CHECK(restored.unowned.size() == 3);
  CHECK(f.current(kAllocation) == 3);
  CHECK(f.current(kRequestedBytes) == 3 * 512);
  CHECK(f.pool.check_invariants() == nullptr);
}

TEST(owner_follows_its_address) {
  Fixture f;
  int kept = 0, gone = 0;
  Block* first = f.allocate(512);
  first->owner = &kept;
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  f.allocate(512)->owner = &gone;
  const Restored restored = f.restore(saved);
  CHECK(restored.unowned.empty());
  CHECK(restored.moved.size() == 2);
  CHECK(restored.moved[0].owner == &kept);
  CHECK(restored.moved[0].block->owner == &kept);
  CHECK(restored.moved[0].block->address == kBase);
  CHECK(restored.moved[1].owner == &gone);
  CHECK(restored.moved[1].block == nullptr);
}

TEST(other_partitions_and_later_segments_keep_their_memory) {
  Fixture f;
  Block* other = f.pool.try_allocate(512, 0);
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  f.pool.adopt(4 * kBase, kSmallSegment, 0, true, 0, Pool::kNextRank, kPrivate);
  for (int i = 0; i < 3; ++i) f.allocate(kMiB);
  f.restore(saved);
  CHECK(f.pool.live_addresses(kPrivate).empty());
  CHECK(f.pool.live_addresses(0) == std::vector<uint64_t>{other->address});
  CHECK(f.current(kReservedBytes) == 3 * kSmallSegment + kLargeSegment);
  CHECK(f.pool.check_invariants() == nullptr);
}

TEST(split_of_the_checkpoint_is_independent_of_the_policy) {
  Fixture f;
  f.allocate(3 * kMiB);
  f.allocate(5 * kMiB);
  const Rows expected = f.rows();
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  Policy policy;
  policy.max_split = 2 * kMiB;
  f.pool.set_policy(policy);
  f.restore(saved);
  CHECK(f.rows() == expected);
  CHECK(f.pool.check_invariants() == nullptr);
}

TEST(pending_block_has_no_checkpoint) {
  Fixture f;
  Block* block = f.allocate(512);
  f.pool.record_stream(block, 5);
  f.pool.free(block);
  std::string message;
  try {
    f.pool.checkpoint(kPrivate);
  } catch (const std::runtime_error& caught) {
    message = caught.what();
  }
  CHECK(message == "Events should have synchronized when checkpointing block");
}

TEST(segment_that_begins_with_a_block_of_other_queues_is_not_found) {
  Fixture f;
  Block* block = f.allocate(512);
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  f.pool.record_stream(block, 5);
  CHECK(f.error(saved) == " could not find 0x4000000");
}

TEST(block_of_other_queues_stays_live_or_pending) {
  Fixture f;
  f.allocate(512);
  Block* used = f.allocate(1024);
  const Checkpoint with = f.pool.checkpoint(kPrivate);
  const Rows expected = f.rows();
  f.pool.record_stream(used, 5);
  CHECK(f.restore(with).pending);
  CHECK(f.rows() == expected);
  CHECK(f.current(kAllocation) == 2);
  CHECK(f.pool.deferred().empty());
  CHECK(f.pool.check_invariants() == nullptr);
  f.pool.free(f.pool.live_at(kBase));
  const Checkpoint same = f.pool.checkpoint(kPrivate);
  f.pool.free(f.pool.live_at(kBase + 512));  // pending, as its other users are not forgotten
  CHECK(f.pool.deferred().size() == 1);
  f.restore(same);
  CHECK(f.current(kAllocation) == 1);
  CHECK(f.pool.check_invariants() == nullptr);
}

TEST(block_of_other_queues_that_was_not_live_stays_pending) {
  Fixture f;
  Block* first = f.allocate(512);
  Block* second = f.allocate(512);
  Block* third = f.allocate(512);
  f.pool.free(second);
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  second = f.allocate(512);
  f.pool.record_stream(second, 5);
  CHECK(f.restore(saved).pending);
  CHECK(f.pool.deferred().size() == 1);
  CHECK(f.pool.live_addresses(kPrivate) == std::vector<uint64_t>({first->address, third->address}));
  CHECK(f.pool.complete_free(f.pool.deferred()[0].serial));
  CHECK(f.pool.check_invariants() == nullptr);
}

TEST(divided_block_of_other_queues_is_refused) {
  Fixture f;
  f.allocate(512);
  Block* large = f.allocate(4096);
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  f.pool.free(large);
  f.pool.record_stream(f.allocate(1024), 5);
  CHECK(f.error(saved) == "Events should have synchronized when setting checkpointed block 0x4000200");
}

TEST(released_segment_is_not_found) {
  Fixture f;
  const Checkpoint saved = f.pool.checkpoint(kPrivate);
  CHECK(f.pool.evict(2 * kBase));
  CHECK(f.error(saved) == " could not find 0x8000000");
  f.pool.adopt(2 * kBase, kLargeSegment / 2, 0, false, 0, Pool::kNextRank, kPrivate);
  CHECK(f.error(saved) == "the blocks of the checkpoint do not tile the segment at 0x8000000");
}

TEST(checkpoint_of_another_pool_is_not_found) {
  Fixture f;
  const Checkpoint saved = f.pool.checkpoint(0);
  CHECK(f.error(saved) == " could not find 0xc000000");
  bool raised = false;
  try {
    f.pool.checkpoint(99);
  } catch (const std::runtime_error&) {
    raised = true;
  }
  CHECK(raised);
  CHECK(f.pool.live_addresses(99).empty());
}

TEST(expandable_segment_may_have_grown) {
  Pool pool;
  Policy policy;
  policy.expandable = true;
  pool.set_policy(policy);
  pool.create_pool(kPrivate, true);
  pool.adopt_expandable(kBase, 10 * kLargeSegment, kLargeSegment, 0, false, kPrivate);
  const auto commit = [&](uint64_t nbytes) {
    const PageRange pages = pool.choose_pages(nbytes, 0, kPrivate);
    return pages.size == 0 ? pool.allocate_at(pages.address, nbytes, 0, 0, kPrivate)
                           : pool.commit_done(pages.address, nbytes, 0);
  };
  commit(5 * kMiB);
  const Checkpoint before = pool.checkpoint(kPrivate);
  commit(30 * kMiB);
  const Checkpoint after = pool.checkpoint(kPrivate);
  pool.restore(kPrivate, before, 0, 0);
  CHECK(pool.live_addresses(kPrivate) == std::vector<uint64_t>{kBase});
  CHECK(pool.count(kReservedBytes, kAllSizes).current == 2 * kLargeSegment);
  CHECK(pool.check_invariants() == nullptr);
  pool.restore(kPrivate, after, 0, 0);
  CHECK(pool.live_addresses(kPrivate) == std::vector<uint64_t>({kBase, kBase + 5 * kMiB}));
  CHECK(pool.check_invariants() == nullptr);
}

TEST(pages_that_were_released_or_committed_between_saved_blocks) {
  Pool pool;
  Policy policy;
  policy.expandable = true;
  pool.set_policy(policy);
  pool.create_pool(kPrivate, true);
  constexpr uint64_t kPage = 2 * kMiB;
  pool.adopt_expandable(kBase, 4 * kPage, kPage, 0, true, kPrivate);
  const auto commit = [&](uint64_t page) {
    CHECK(pool.begin_commit({kBase + page * kPage, kPage}));
    pool.commit_done(kBase + page * kPage, 0, 0);
  };
  commit(0);
  commit(2);
  pool.allocate_at(kBase, 512, 0, 0, kPrivate);
  pool.allocate_at(kBase + 2 * kPage, 512, 0, 0, kPrivate);
  const Checkpoint saved = pool.checkpoint(kPrivate);
  commit(1);
  pool.restore(kPrivate, saved, 0, 0);
  CHECK(pool.live_addresses(kPrivate) == std::vector<uint64_t>({kBase, kBase + 2 * kPage}));
  CHECK(pool.check_invariants() == nullptr);
  pool.free(pool.live_at(kBase));
  CHECK(pool.begin_decommit({kBase, kPage}));
  std::string message;
  try {
    pool.restore(kPrivate, saved, 0, 0);
  } catch (const std::runtime_error& caught) {
    message = caught.what();
  }
  CHECK(message == " could not find 0x4000000");
}

TEST(random_programs_return_to_every_checkpoint) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    Fixture f;
    std::mt19937 random(seed);
    const auto below = [&](uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random); };
    std::vector<std::pair<Checkpoint, Rows>> taken;
    uint64_t next_segment = 4 * kBase;
    for (int step = 0; step < 300; ++step) {
      const uint64_t choice = below(100);
      const std::vector<uint64_t> live = f.pool.live_addresses(kPrivate);
      if (choice < 5 && !live.empty()) {
        if (seed % 2 == 0) f.pool.record_stream(f.pool.live_at(live[below(live.size())]), 5);
      } else if (choice < 10) {
        for (const DeferredFree& pending : f.pool.deferred()) f.pool.complete_free(pending.serial);
      } else if (choice < 55) {
        const uint64_t nbytes = below(4) == 0 ? kMiB + below(4 * kMiB) : 1 + below(200000);
        if (f.allocate(nbytes) == nullptr) {
          f.pool.adopt(next_segment, nbytes > kMiB ? kLargeSegment : kSmallSegment, 0, nbytes <= kMiB, 0,
                       Pool::kNextRank, kPrivate);
          next_segment += kBase;
        }
      } else if (choice < 92 && !live.empty()) {
        f.pool.free(f.pool.live_at(live[below(live.size())]));
      } else if (choice < 96) {
        if (f.pool.deferred().empty()) taken.emplace_back(f.pool.checkpoint(kPrivate), f.rows());
      } else if (!taken.empty()) {
        const auto& [saved, expected] = taken[below(taken.size())];
        try {
          f.restore(saved);
        } catch (const std::runtime_error&) {
          CHECK(seed % 2 == 0);
          continue;
        }
        const Rows now = f.rows();  // with the segments that were adopted since
        CHECK(std::includes(now.begin(), now.end(), expected.begin(), expected.end()));
        CHECK(std::count_if(now.begin(), now.end(), [](const auto& row) { return std::get<2>(row); }) ==
              std::count_if(expected.begin(), expected.end(), [](const auto& row) { return std::get<2>(row); }));
      }
      CHECK(f.pool.check_invariants() == nullptr);
    }
  }
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
