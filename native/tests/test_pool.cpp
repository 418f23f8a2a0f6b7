// Small stories about the pool and each table it stands on; over 400 lines, as one binary is built three times.
#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "pool/check.hpp"
#include "pool/pool.hpp"
#include "pool/stacks.hpp"
#include "pool/tables.hpp"

namespace forebay {

// Lets a test break what broken() must find.
struct PoolTest {
  static Ledger& ledger(Pool& pool) { return pool.ledger_; }
  static LiveTable& live(Pool& pool) { return pool.live_; }
  static Segment& segment(Pool& pool, uint64_t address) { return pool.segments_.at(address); }
  static bool overlaps(const Pool& pool, uint64_t address, uint64_t size) { return pool.overlaps(address, size); }
  static void await(Pool& pool, Block* block) { pool.awaiting_.emplace(block->serial, block); }
};

}  // namespace forebay

using namespace forebay;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kHere = 64 * kMiB;  // where most stories' first segment lies

// Blocks that are in no pool, all of the oldest segment unless told otherwise.
struct Loose {
  std::deque<Block> blocks;

  Block* block(uint64_t size, uint64_t address) {
    Block& made = blocks.emplace_back();
    made.size = size;
    made.address = address;
    return &made;
  }
};

// A pool with one segment of the small kind for queue 0.
struct OneSegment {
  Pool pool;

  OneSegment() { pool.adopt(kHere, kSmallSegment, 0, true); }

  int64_t now(Metric metric) const { return pool.count(metric, kAll).current; }
  bool sound() const { return pool.broken() == nullptr; }
  std::string fault() const {
    const char* rule = pool.broken();
    return rule == nullptr ? "" : rule;
  }
};

}  // namespace

// FreeList

TEST(best_fit_is_the_smallest_that_is_large_enough) {
  Loose loose;
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

TEST(of_equal_blocks_the_lowest_address_is_best) {
  Loose loose;
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

TEST(of_equal_blocks_that_of_the_oldest_segment_is_best) {  // as PyTorch has it since 2.10
  Loose loose;
  FreeList list{nullptr, true};
  Block* low = loose.block(1024, 0x2000);
  Block* older = loose.block(1024, 0x8000);
  low->rank = 1;
  list.insert(low);
  list.insert(older);
  CHECK(list.best_fit(1024) == older);
}

TEST(a_block_in_the_middle_of_a_bin_can_be_erased) {
  Loose loose;
  FreeList list{nullptr, true};
  std::vector<Block*> blocks;
  for (uint64_t at = 1; at <= 100; ++at) list.insert(blocks.emplace_back(loose.block(1024, at * 1024)));
  list.erase(blocks[50]);
  CHECK(!list.contains(blocks[50]));
  CHECK(list.contains(blocks[49]) && list.contains(blocks[51]));
  CHECK(list.count() == 99);
}

TEST(sizes_beyond_every_bin_boundary_are_told_apart) {
  Loose loose;
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

TEST(a_free_list_is_an_ordered_set) {
  const auto key = [](const Block* b) { return std::make_tuple(b->size, b->rank, b->address); };
  const auto before = [&](const Block* a, const Block* b) { return key(a) < key(b); };
  std::set<Block*, decltype(before)> expected(before);
  std::mt19937_64 chance(1);
  Loose loose;
  FreeList list{nullptr, true};
  std::vector<Block*> listed;
  for (uint64_t step = 0; step < 10'000; ++step) {
    if (listed.empty() || chance() % 5 < 3) {
      const uint64_t quanta = chance() % 2 ? 1 + chance() % 8 : uint64_t{1} << chance() % 20;
      Block* block = loose.block(quanta * kQuantum, (1 + chance() % 4096) * kMiB + step * kQuantum);
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
    Loose wish;
    const auto found = expected.lower_bound(wish.block((1 + chance() % 512) * kQuantum, 0));
    CHECK(list.best_fit(wish.blocks.front().size) == (found == expected.end() ? nullptr : *found));
    CHECK(list.count() == expected.size());
  }
}

// LiveTable

TEST(an_address_is_found_exactly) {
  Loose loose;
  LiveTable table;
  Block* block = loose.block(1024, 0x4000);
  table.insert(block);
  CHECK(table.find(0x4000) == block);
  CHECK(table.find(0x4200) == nullptr);
  table.erase(block);
  CHECK(table.find(0x4000) == nullptr);
  CHECK(table.count() == 0);
}

TEST(a_live_table_is_a_map) {  // few addresses, so runs collide, wrap and are shifted back; many, so it grows
  for (const uint64_t addresses : {48, 100'000}) {
    std::unordered_map<uint64_t, Block*> expected;
    std::mt19937_64 chance(addresses);
    std::deque<Block> blocks;
    LiveTable table;
    for (int step = 0; step < 50'000; ++step) {
      const uint64_t address = (1 + chance() % addresses) * kQuantum;
      const auto at = expected.find(address);
      CHECK(table.find(address) == (at == expected.end() ? nullptr : at->second));
      if (at == expected.end()) {
        Block& made = blocks.emplace_back();
        made.address = address;
        table.insert(expected[address] = &made);
      } else {
        table.erase(at->second);
        expected.erase(at);
      }
      CHECK(table.count() == expected.size());
    }
    for (const auto& [address, block] : expected) CHECK(table.find(address) == block);
  }
}

// Ledger

TEST(a_ledger_counts_what_came_and_what_went) {
  Ledger ledger;
  ledger.add(kActiveBytes, true, 100);
  ledger.add(kActiveBytes, true, -30);
  ledger.add(kActiveBytes, false, 50);
  const Count small = ledger.read(kActiveBytes, kSmallKind), all = ledger.read(kActiveBytes, kAll);
  CHECK(small.current == 70 && small.peak == 100 && small.allocated == 100 && small.freed == 30);
  CHECK(all.current == 120 && all.peak == 120 && all.allocated == 150 && all.freed == 30);
  CHECK(ledger.read(kActive, kAll).peak == 0);
}

TEST(the_peak_of_all_is_not_the_sum_of_the_peaks) {
  Ledger ledger;
  ledger.add(kActive, true, 10);
  ledger.add(kActive, true, -10);
  ledger.add(kActive, false, 10);
  CHECK(ledger.read(kActive, kSmallKind).peak == 10);
  CHECK(ledger.read(kActive, kLargeKind).peak == 10);
  CHECK(ledger.read(kActive, kAll).peak == 10);
}

TEST(resets_forget_the_past_and_keep_the_present) {
  Ledger ledger;
  ledger.add(kActive, true, 10);
  ledger.add(kActive, true, -7);
  ledger.reset_peaks();
  ledger.reset_accumulated();
  ledger.add(kActive, true, -1);
  const Count count = ledger.read(kActive, kAll);
  CHECK(count.current == 2 && count.peak == 3 && count.allocated == 0 && count.freed == 1);
}

// Ring

TEST(a_ring_keeps_the_newest) {
  for (const uint64_t most : {1, 3, 16384, 16385, 40000}) {
    Ring<Entry> ring(most);
    CHECK(ring.size() == 0 && ring.lost() == 0);
    for (uint64_t n = 0; n < 100'000; ++n) {
      ring.push(Entry{n, 0, 0, 0, 0, Action::Take, 0, 0});
      CHECK(ring.size() == std::min(n + 1, most));
      CHECK(ring.size() + ring.lost() == n + 1);
      CHECK(ring[0].time_ns == ring.lost());
      CHECK(ring[ring.size() - 1].time_ns == n);
    }
  }
}

// Stacks

TEST(equal_stacks_have_equal_numbers) {
  Stacks stacks;
  const Place one[] = {{0x10, 1}, {0x20, 2}, {0x30, 3}};  // innermost first
  const Place two[] = {{0x10, 9}, {0x20, 2}, {0x30, 3}};
  CHECK(stacks.intern(nullptr, 0) == 0);
  const uint32_t first = stacks.intern(one, 3), second = stacks.intern(two, 3);
  CHECK(first != second);
  CHECK(stacks.intern(one, 3) == first);
  CHECK(stacks.intern(two, 3) == second);
  CHECK(stacks[first].parent == stacks[second].parent);  // the callers are kept once
  CHECK(stacks.size() == 1 + 4);
  CHECK(stacks.intern(one + 1, 2) == stacks[first].parent);
}

TEST(a_number_leads_back_to_its_stack) {
  Stacks stacks;
  std::mt19937_64 chance(2);
  std::vector<std::pair<std::vector<Place>, uint32_t>> interned;
  for (int step = 0; step < 5'000; ++step) {
    std::vector<Place> places(chance() % 12);
    for (Place& place : places) place = {(1 + chance() % 6) * 64, static_cast<int32_t>(chance() % 4)};
    interned.emplace_back(places, stacks.intern(places.data(), places.size()));
  }
  CHECK(stacks.size() > 10'000);  // it has grown
  for (const auto& [places, number] : interned) {
    CHECK(stacks.intern(places.data(), places.size()) == number);
    uint32_t at = number;
    for (const Place& place : places) {
      CHECK(stacks[at].place == place);
      CHECK(stacks[at].parent < at);
      at = stacks[at].parent;
    }
    CHECK(at == 0);
  }
}

// Pool

TEST(a_taken_block_is_split_from_the_front) {
  OneSegment one;
  Block* first = one.pool.take(1000, 0);
  Block* second = one.pool.take(1, 0);
  CHECK(first->address == kHere && first->size == 1024 && first->requested == 1000);
  CHECK(second->address == kHere + 1024 && second->size == 512);
  CHECK(one.now(kInactiveSplitBytes) == static_cast<int64_t>(kSmallSegment - 1536));
  CHECK(one.sound());
}

TEST(a_large_block_keeps_a_rest_of_a_mebibyte) {
  Pool pool;
  pool.adopt(kHere, 20 * kMiB, 0, false);
  Block* block = pool.take(19 * kMiB, 0);
  CHECK(block->size == 20 * kMiB);
  pool.give(block);
  CHECK(pool.take(19 * kMiB - 512, 0)->size == 19 * kMiB - 512);
  CHECK(pool.broken() == nullptr);
}

TEST(a_given_block_merges_with_both_neighbours) {
  OneSegment one;
  Block* left = one.pool.take(512, 0);
  Block* middle = one.pool.take(512, 0);
  Block* right = one.pool.take(512, 0);
  one.pool.give(left);
  CHECK(one.pool.take(1024, 0)->address == kHere + 1536);  // 512 free bytes on the left are too few
  one.pool.give(right);
  one.pool.give(middle);
  CHECK(one.sound());
  CHECK(one.pool.take(1536, 0)->address == kHere);
}

TEST(of_equal_blocks_one_of_the_segment_that_came_first_is_taken) {
  Pool by_arrival, by_address;
  for (const uint64_t address : {kHere + kSmallSegment, kHere}) {
    by_arrival.adopt(address, kSmallSegment, 0, true);
    by_address.adopt(address, kSmallSegment, 0, true, 0, address);
  }
  CHECK(by_arrival.take(512, 0)->address == kHere + kSmallSegment);
  CHECK(by_address.take(512, 0)->address == kHere);
}

TEST(no_queue_gets_another_queues_block) {
  OneSegment one;
  CHECK(one.pool.take(512, 1) == nullptr);
  CHECK(one.pool.take(2 * kMiB, 0) == nullptr);  // nor the large kind one of the small
}

TEST(nothing_and_too_much_are_never_there) {
  OneSegment one;
  CHECK(one.pool.take(0, 0) == nullptr);
  CHECK(one.pool.take(kMost, 0) == nullptr);
  CHECK(one.pool.take(~uint64_t{0}, 0) == nullptr);
}

TEST(a_segment_leaves_when_all_of_it_is_free) {
  OneSegment one;
  Block* block = one.pool.take(512, 0);
  CHECK(!one.pool.evict(kHere));
  CHECK(one.pool.evictable(true).empty());
  one.pool.give(block);
  const auto found = one.pool.evictable(true);
  CHECK(found.size() == 1 && found[0].address == kHere && found[0].size == kSmallSegment);
  CHECK(!one.pool.evict(kHere + 512));
  CHECK(one.pool.evict(kHere));
  CHECK(!one.pool.evict(kHere));
  CHECK(one.pool.take(512, 0) == nullptr);
  CHECK(one.now(kReservedBytes) == 0 && one.now(kSegment) == 0);
  CHECK(one.sound());
}

TEST(a_pool_owns_its_segments_to_the_byte) {
  OneSegment one;
  CHECK(!one.pool.owns(kHere - 1) && one.pool.owns(kHere));
  CHECK(one.pool.owns(kHere + kSmallSegment - 1) && !one.pool.owns(kHere + kSmallSegment));
  const auto overlaps = [&](uint64_t address, uint64_t size) { return PoolTest::overlaps(one.pool, address, size); };
  CHECK(overlaps(kHere - 512, 513) && !overlaps(kHere - 512, 512));
  CHECK(overlaps(0, ~uint64_t{0}) && !overlaps(kHere + kSmallSegment, kMiB));
}

TEST(a_segment_is_aligned_and_overlaps_no_other) {
  OneSegment one;
  const auto adopts = [&](uint64_t address, uint64_t size) {
    return check::refusal([&] { one.pool.adopt(address, size, 0, true); }).empty();
  };
  CHECK(!adopts(0, 512) && !adopts(513, 512) && !adopts(512, 0) && !adopts(512, 511));
  CHECK(!adopts(~uint64_t{511}, 1024));  // beyond the end of all addresses
  CHECK(!adopts(kHere - 512, 1024) && !adopts(kHere + kSmallSegment - 512, 512));
  CHECK(one.now(kSegment) == 1 && one.sound());
  CHECK(adopts(kHere - 512, 512) && adopts(kHere + kSmallSegment, 512));
  CHECK(check::refusal([&] { one.pool.adopt(kHere, 512, 0, true); }) ==
        "a segment at 0x4000000 of 512 bytes would overlap another");
}

TEST(the_ledger_is_read_by_numbers_that_exist) {
  OneSegment one;
  CHECK(one.pool.counts().size() == kMetrics * kKinds * 4);
  CHECK(one.pool.counts()[kReservedBytes * kKinds * 4] == kSmallSegment);
  CHECK(!check::refusal([&] { one.pool.count(kMetrics, 0); }).empty());
  CHECK(!check::refusal([&] { one.pool.count(0, kKinds); }).empty());
}

TEST(a_block_that_others_use_waits_until_it_is_settled) {
  OneSegment one;
  Block* block = one.pool.take(512, 0);
  one.pool.use(block, 0);  // its own queue does not count
  one.pool.use(block, 7);
  one.pool.use(block, 7);
  CHECK(block->uses == std::vector<uint64_t>{7});
  CHECK(one.pool.give(block));
  CHECK(one.now(kAllocation) == 0 && one.now(kActive) == 1);
  const auto waiting = one.pool.deferred();
  CHECK(waiting.size() == 1 && waiting[0].serial == block->serial && waiting[0].uses == std::vector<uint64_t>{7});
  CHECK(one.pool.deferred().size() == 1);  // told until it was heard
  one.pool.heard(waiting[0].serial);
  CHECK(one.pool.deferred().empty());
  CHECK(one.pool.take(512, 0)->address == kHere + 512);
  CHECK(one.sound());
  CHECK(one.pool.settle(waiting[0].serial));
  CHECK(!one.pool.settle(waiting[0].serial));
  CHECK(one.pool.take(512, 0)->address == kHere);
  CHECK(one.sound());
}

TEST(a_settled_block_is_no_longer_deferred) {
  OneSegment one;
  Block* block = one.pool.take(512, 0);
  one.pool.use(block, 1);
  one.pool.give(block);
  one.pool.settle(block->serial);
  CHECK(one.pool.deferred().empty());
}

TEST(a_block_is_resized_in_place_where_its_size_stays) {
  OneSegment one;
  Block* block = one.pool.take(1000, 0);
  CHECK(one.pool.resize(block, 600, 0));
  CHECK(block->requested == 600 && one.now(kRequestedBytes) == 600);
  CHECK(!one.pool.resize(block, 1025, 0));  // does not fit
  CHECK(!one.pool.resize(block, 512, 0));   // would leave a block's worth unused
  CHECK(!one.pool.resize(block, 0, 0));
  CHECK(block->requested == 600 && one.sound());
}

TEST(memory_is_untouched_until_it_was_handed_out_once) {
  OneSegment one;
  Block* first = one.pool.take(512, 0);
  CHECK(first->untouched);
  Block* second = one.pool.take(512, 0);
  CHECK(second->untouched);
  one.pool.give(first);
  CHECK(!one.pool.take(512, 0)->untouched);
  one.pool.give(second);  // merges with the rest, which nobody had
  CHECK(!one.pool.take(4096, 0)->untouched);
}

TEST(only_a_live_blocks_first_byte_names_it) {
  OneSegment one;
  Block* block = one.pool.take(2048, 0);
  CHECK(one.pool.live_at(kHere) == block);
  CHECK(one.pool.live_at(kHere + 512) == nullptr);
  CHECK(one.pool.live_at(kHere + 1) == nullptr);
  one.pool.give(block);
  CHECK(one.pool.live_at(kHere) == nullptr);
}

TEST(a_history_tells_what_happened) {
  OneSegment one;
  one.pool.record(10);
  Block* block = one.pool.take(1000, 0, 5);
  one.pool.use(block, 1);
  one.pool.give(block);
  one.pool.settle(block->serial);
  one.pool.evict(kHere);
  uint64_t lost = 1;
  std::vector<std::tuple<Action, uint64_t, uint32_t>> told;
  for (const Entry& entry : one.pool.history(&lost)) told.emplace_back(entry.action, entry.nbytes, entry.stack);
  const std::vector<std::tuple<Action, uint64_t, uint32_t>> expected = {
      {Action::Take, 1000, 5}, {Action::Give, 1000, 5}, {Action::Given, 1000, 5}, {Action::Release, kSmallSegment, 0}};
  CHECK(told == expected);
  CHECK(lost == 0);
}

TEST(tables_list_blocks_under_their_segments) {
  OneSegment one;
  one.pool.adopt(kHere - 20 * kMiB, 20 * kMiB, 3, false);
  one.pool.take(512, 0);
  const auto [segments, blocks] = rows_of(one.pool);
  CHECK(segments.size() == 2 && segments[0].queue == 3 && segments[0].small == 0 && segments[1].small == 1);
  CHECK(blocks.size() == 3 && blocks[0].segment == 0 && blocks[1].segment == 1 && blocks[2].segment == 1);
  CHECK(blocks[1].state == 1 && blocks[2].state == 0);
}

TEST(a_broken_ledger_is_found) {
  OneSegment one;
  PoolTest::ledger(one.pool).add(kActive, true, 1);
  CHECK(one.fault() == "the ledger differs from a recount");
}

TEST(a_lost_live_block_is_found) {
  OneSegment one;
  Block* block = one.pool.take(512, 0);
  PoolTest::live(one.pool).erase(block);
  CHECK(one.fault() == "the live table and the block disagree");
}

TEST(a_gap_between_blocks_is_found) {
  OneSegment one;
  one.pool.take(512, 0)->size = 1024;
  CHECK(one.fault() == "a gap or an overlap between neighbours");
}

TEST(blocks_that_do_not_fill_their_segment_are_found) {
  OneSegment one;
  PoolTest::segment(one.pool, kHere).size += 512;
  CHECK(one.fault() == "the blocks do not cover the segment");
}

TEST(segments_that_overlap_are_found) {
  OneSegment one;
  one.pool.adopt(kHere + kSmallSegment, kSmallSegment, 0, true);
  one.pool.take(kMiB, 0);
  one.pool.take(kMiB, 0)->size += 512;
  PoolTest::segment(one.pool, kHere).size += 512;
  CHECK(one.fault() == "two segments overlap");
}

TEST(a_block_that_only_thinks_it_waits_is_found) {
  OneSegment one;
  Block* block = one.pool.take(512, 0);
  PoolTest::await(one.pool, block);
  CHECK(one.fault() == "the waiting list and the block disagree");
}

TEST(a_free_block_with_users_is_found) {
  OneSegment one;
  PoolTest::segment(one.pool, kHere).first->uses.push_back(1);
  CHECK(one.fault() == "a free block is used by a queue");
}

TEST(a_block_of_another_rank_than_its_segment_is_found) {
  OneSegment one;
  PoolTest::segment(one.pool, kHere).first->rank = 7;
  CHECK(one.fault() == "a block names another segment");
}

TEST(a_free_block_that_is_not_listed_is_found) {
  OneSegment one;
  Segment& segment = PoolTest::segment(one.pool, kHere);
  segment.free_list->erase(segment.first);
  CHECK(one.fault() == "the free list and the block disagree");
}

TEST(a_request_larger_than_its_block_is_found) {
  OneSegment one;
  one.pool.take(512, 0)->requested = 513;
  CHECK(one.fault() == "a block is smaller than what was asked");
}

TEST(neighbours_that_disagree_are_found) {
  OneSegment one;
  one.pool.take(512, 0)->next->prev = nullptr;
  CHECK(one.fault() == "neighbours do not agree");
}

TEST(eight_threads_share_a_pool) {
  Pool pool;
  for (uint64_t queue = 0; queue < 2; ++queue) pool.adopt(kHere + queue * 64 * kMiB, 64 * kMiB, queue, true);
  pool.record(1000);
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 8; ++number) {
    threads.emplace_back([&pool, number] {
      std::mt19937_64 chance(number);
      std::vector<Block*> mine;
      for (int step = 0; step < 5'000; ++step) {
        if (mine.size() < 20 && chance() % 2) {
          if (Block* block = pool.take(1 + chance() % 8192, number % 2)) mine.push_back(block);
        } else if (!mine.empty()) {
          std::swap(mine[chance() % mine.size()], mine.back());
          if (chance() % 4 == 0) pool.use(mine.back(), 9);
          if (pool.give(mine.back())) pool.settle(mine.back()->serial);
          mine.pop_back();
        }
        if (step % 500 == 0) {
          uint64_t lost;
          pool.history(&lost);
          pool.count(kActive, kAll);
          rows_of(pool);
        }
      }
      for (Block* block : mine) pool.give(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(pool.broken() == nullptr);
  CHECK(pool.count(kActive, kAll).current == 0);
  CHECK(pool.evictable(true).size() + pool.evictable(false).size() == 2);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
