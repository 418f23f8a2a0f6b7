// Small stories about what a pool does beyond best fit: growing segments, homes, and the rules of its policy; over 400
// lines, as one binary is built three times.
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "pool/check.hpp"
#include "pool/pool.hpp"
#include "pool/tables.hpp"

namespace forebay {

// Lets a test break what broken() must find.
struct PoolTest {
  static Segment& segment(Pool& pool, uint64_t address) { return pool.segments_.at(address); }
  static Home& home(Pool& pool, uint32_t number) { return *pool.home_of(number); }
  static uint64_t& growing(Pool& pool) { return pool.growing_; }
  static bool& plain(Pool& pool) { return pool.plain_; }
};

}  // namespace forebay

using namespace forebay;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kHere = 64 * kMiB;
constexpr uint64_t kPage = 20 * kMiB;

Policy growing() {
  Policy policy;
  policy.growing = true;
  return policy;
}

struct Scene {
  Pool pool;

  int64_t now(Metric metric) const { return pool.count(metric, kAll).current; }
  bool sound() const { return pool.broken() == nullptr; }
  std::string fault() const {
    const char* rule = pool.broken();
    return rule == nullptr ? "" : rule;
  }
};

// A growing segment of ten pages of the large kind for queue 0.
struct OneSpace : Scene {
  OneSpace() {
    pool.set_policy(growing());
    pool.adopt_space(kHere, 10 * kPage, kPage, 0, false, 0, 0);
  }

  // What an allocator does: a block there is, or one after memory has come.
  Block* take(uint64_t nbytes) {
    if (Block* block = pool.take(nbytes, 0)) return block;
    const Piece piece = pool.room(nbytes, 0, 0);
    if (piece.address == 0) return nullptr;
    return piece.size == 0 ? pool.take_at(piece.address, nbytes, 0, 0, 0) : pool.came(piece.address, nbytes, 0);
  }

  // Gives back what is idle; how many pieces went.
  size_t shrink() {
    const auto pieces = pool.idle_pages(false, 0);
    for (const Piece piece : pieces) {
      if (pool.leave(piece)) pool.left(piece.address);
    }
    return pieces.size();
  }
};

bool is(Piece piece, uint64_t address, uint64_t size) { return piece.address == address && piece.size == size; }

}  // namespace

// Growing segments

TEST(space_is_no_memory) {
  OneSpace one;
  CHECK(one.now(kReservedBytes) == 0 && one.now(kSegment) == 0);
  CHECK(one.pool.take(kMiB, 0) == nullptr);
  CHECK(one.pool.evictable(false, 0, true).empty());
  CHECK(one.pool.owns(kHere) && rows_of(one.pool).segments.empty());
  CHECK(!one.pool.evict(kHere) && one.sound());
}

TEST(a_space_is_made_of_whole_pages) {
  Scene scene;
  for (const uint64_t page : {uint64_t{0}, uint64_t{100}, 3 * kMiB}) {
    bool refused = false;
    try {
      scene.pool.adopt_space(kHere, kPage, page, 0, false, 0, 0);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused && !scene.pool.owns(kHere) && scene.sound());
  }
}

TEST(as_many_pages_come_as_a_request_lacks) {
  OneSpace one;
  const Piece piece = one.pool.room(25 * kMiB, 0, 0);
  CHECK(is(piece, kHere, 2 * kPage));
  CHECK(one.now(kReservedBytes) == 0 && one.sound());
  Block* block = one.pool.came(piece.address, 25 * kMiB, 0);
  CHECK(block->address == kHere && block->size == 25 * kMiB && block->untouched);
  CHECK(one.now(kReservedBytes) == static_cast<int64_t>(2 * kPage) && one.now(kSegment) == 0);
  CHECK(one.now(kInactiveSplit) == 0);  // as PyTorch counts
  Block* next = one.take(40 * kMiB);    // 15 MiB are there already
  CHECK(next->address == block->address + block->size);
  CHECK(one.now(kReservedBytes) == static_cast<int64_t>(4 * kPage) && one.sound());
}

TEST(a_page_that_came_is_free_for_who_is_quicker) {
  OneSpace one;
  const Piece piece = one.pool.room(10 * kMiB, 0, 0);
  CHECK(one.pool.take(kMiB + 1, 0) == nullptr);  // on its way it is nobody's
  CHECK(one.pool.came(piece.address, 0, 0) == nullptr);
  CHECK(one.pool.take(2 * kMiB, 0)->address == kHere);
  const Piece there = one.pool.room(18 * kMiB, 0, 0);
  CHECK(is(there, kHere + 2 * kMiB, 0));
  CHECK(one.pool.take_at(there.address, 18 * kMiB, 0, 0, 0) != nullptr);
  CHECK(one.pool.take_at(there.address, 18 * kMiB, 0, 0, 0) == nullptr);
  CHECK(one.sound());
}

TEST(two_requests_get_pages_of_their_own) {
  OneSpace one;
  const Piece first = one.pool.room(kPage, 0, 0), second = one.pool.room(kPage, 0, 0);
  CHECK(is(first, kHere, kPage) && is(second, kHere + kPage, kPage));
  CHECK(one.sound());
  CHECK(one.pool.came(second.address, kPage, 0)->address == second.address);
  CHECK(one.pool.came(first.address, kPage, 0)->address == first.address);
  CHECK(one.sound());
}

TEST(a_piece_that_is_named_comes) {  // for who follows a recording
  OneSpace one;
  CHECK(one.pool.come({kHere + 2 * kPage, kPage}) && one.sound());
  CHECK(!one.pool.come({kHere + 2 * kPage, kPage}) && !one.pool.come({kHere, 3 * kPage}));  // it is on its way
  CHECK(!one.pool.come({kHere, 0}) && !one.pool.come({kHere, 512}) && !one.pool.come({kHere + 512, kPage}));
  CHECK(!one.pool.come({0, kPage}) && !one.pool.come({kHere + 9 * kPage, 2 * kPage}));
  CHECK(one.pool.came(kHere + 2 * kPage, kPage, 0)->address == kHere + 2 * kPage);
  CHECK(!one.pool.come({kHere + 2 * kPage, kPage}));
  CHECK(one.pool.come({kHere, 2 * kPage}) && one.pool.come({kHere + 3 * kPage, 7 * kPage}) && one.sound());
  one.pool.stayed(kHere);
  CHECK(one.pool.come({kHere + kPage, kPage}) && one.sound());
}

TEST(a_request_that_no_space_can_hold_needs_more_space) {
  OneSpace one;
  CHECK(is(one.pool.room(10 * kPage + 1, 0, 0), 0, 0));
  CHECK(is(one.pool.room(kMiB, 0, 0), 0, 0));      // of the small kind
  CHECK(is(one.pool.room(2 * kMiB, 1, 0), 0, 0));  // another queue's
  CHECK(is(one.pool.room(10 * kPage, 0, 0), kHere, 10 * kPage));
  CHECK(is(one.pool.room(2 * kMiB, 0, 0), 0, 0));  // all of it is on its way
  CHECK(one.sound());
}

TEST(memory_that_could_not_come_leaves_the_space_as_it_was) {
  OneSpace one;
  Block* block = one.take(kPage);
  const Piece piece = one.pool.room(2 * kPage, 0, 0), other = one.pool.room(kPage, 0, 0);
  one.pool.stayed(piece.address);
  CHECK(one.sound());
  one.pool.stayed(other.address);
  CHECK(one.sound() && one.now(kReservedBytes) == static_cast<int64_t>(kPage));
  CHECK(is(one.pool.room(9 * kPage, 0, 0), kHere + kPage, 9 * kPage));
  CHECK(block->next->state == State::Coming);
}

TEST(whole_pages_leave_and_slivers_stay) {
  OneSpace one;
  Block* first = one.take(5 * kMiB);
  Block* second = one.take(80 * kMiB);
  Block* third = one.take(5 * kMiB);
  CHECK(third->address == kHere + 85 * kMiB && one.now(kReservedBytes) == static_cast<int64_t>(5 * kPage));
  one.pool.give(second);
  const auto idle = one.pool.idle_pages(false, 0);
  CHECK(idle.size() == 1 && is(idle[0], kHere + kPage, 3 * kPage));
  CHECK(one.pool.leave(idle[0]));
  CHECK(!one.pool.leave(idle[0]));
  CHECK(one.now(kReservedBytes) == static_cast<int64_t>(5 * kPage) && one.sound());  // it has not gone yet
  CHECK(one.pool.take(16 * kMiB, 0) == nullptr);
  CHECK(!one.pool.left(idle[0].address));
  CHECK(one.now(kReservedBytes) == static_cast<int64_t>(2 * kPage) && one.sound());
  CHECK(one.pool.take(15 * kMiB, 0)->address == kHere + 5 * kMiB);  // a sliver of 15 MiB on the left, 5 on the right
  CHECK(one.pool.take(5 * kMiB, 0)->address == kHere + 4 * kPage);
  CHECK(first->size == 5 * kMiB && one.sound());
}

TEST(slivers_on_both_sides_serve_with_what_comes_between) {
  OneSpace one;
  Block* first = one.take(15 * kMiB);
  Block* second = one.take(30 * kMiB);
  Block* third = one.take(15 * kMiB);
  one.pool.give(second);
  CHECK(one.shrink() == 1);  // the page in the middle
  const Piece piece = one.pool.room(30 * kMiB, 0, 0);
  CHECK(is(piece, kHere + kPage, kPage));
  CHECK(one.pool.came(piece.address, 30 * kMiB, 0)->address == first->address + first->size);
  CHECK(one.now(kReservedBytes) == static_cast<int64_t>(3 * kPage) && third->prev->size == 30 * kMiB && one.sound());
}

TEST(pages_that_could_not_go_are_free_again) {
  OneSpace one;
  one.pool.give(one.take(30 * kMiB));
  const auto idle = one.pool.idle_pages(false, 0);
  CHECK(idle.size() == 1 && one.pool.leave(idle[0]));
  one.pool.stayed(idle[0].address);
  CHECK(one.sound() && one.now(kReservedBytes) == static_cast<int64_t>(2 * kPage));
  CHECK(one.pool.take(2 * kPage, 0)->address == kHere);
}

TEST(a_space_goes_when_nothing_of_it_is_left) {
  OneSpace one;
  Block* block = one.take(2 * kPage);
  CHECK(!one.pool.evict_space(kHere));
  one.pool.give(block);
  CHECK(!one.pool.evict_space(kHere) && !one.pool.evict(kHere));
  CHECK(one.pool.leave({kHere + kPage, kPage}));
  CHECK(!one.pool.left(kHere + kPage) && one.pool.leave({kHere, kPage}));
  CHECK(!one.pool.evict_space(kHere));
  CHECK(one.pool.left(kHere) && one.sound());
  CHECK(!one.pool.evict_space(kHere + kPage) && one.pool.evict_space(kHere) && !one.pool.evict_space(kHere));
  CHECK(!one.pool.owns(kHere) && one.now(kReservedBytes) == 0 && one.sound());
}

TEST(only_whole_pages_that_are_free_may_leave) {
  OneSpace one;
  Block* block = one.take(kPage + 512);
  CHECK(!one.pool.leave({kHere, kPage}));          // in use
  CHECK(!one.pool.leave({kHere + kPage, kPage}));  // in part
  one.pool.give(block);
  CHECK(!one.pool.leave({kHere, 512}));          // a part of a page
  CHECK(!one.pool.leave({kHere + 512, kPage}));  // in the middle of one
  CHECK(!one.pool.leave({kHere, 0}));
  CHECK(!one.pool.leave({kHere + kPage, 2 * kPage}));  // not all of it is there
  CHECK(!one.pool.leave({kHere, ~uint64_t{0} / kPage * kPage}));
  CHECK(!one.pool.leave({kHere - kPage, kPage}) && !one.pool.leave({0, kPage}));
  one.pool.adopt(1024 * kHere, 2 * kPage, 0, false);  // a segment that does not grow
  CHECK(!one.pool.leave({1024 * kHere, kPage}));
  CHECK(one.sound() && one.pool.leave({kHere, 2 * kPage}) && one.sound());
}

TEST(news_of_what_is_not_on_its_way_changes_nothing) {
  OneSpace one;
  Block* block = one.take(kPage);
  for (const uint64_t address : {uint64_t{0}, kHere, kHere + 512, kHere + kPage, 99 * kHere}) {
    CHECK(one.pool.came(address, kMiB, 0) == nullptr);
    CHECK(!one.pool.left(address));
    one.pool.stayed(address);
    CHECK(one.pool.take_at(address, 0, 0, 0, 0) == nullptr);
    CHECK(one.pool.take_at(address, kMost, 0, 0, 0) == nullptr);
  }
  CHECK(block->state == State::Live && one.now(kReservedBytes) == static_cast<int64_t>(kPage) && one.sound());
}

TEST(the_block_with_the_least_room_behind_it_is_taken) {  // as PyTorch keeps large room together
  OneSpace one;
  Block* first = one.take(kPage);
  Block* second = one.take(kPage);
  Block* third = one.take(kPage);
  one.pool.give(third);  // bare behind it, seven pages
  one.pool.give(first);  // in use behind it
  CHECK(one.pool.take(kPage, 0) == first);
  CHECK(second->state == State::Live && one.sound());
}

TEST(without_growing_the_blocks_of_growing_segments_are_not_taken) {
  OneSpace one;
  one.pool.give(one.take(kPage));
  one.pool.set_policy(Policy{});
  CHECK(one.pool.take(kPage, 0) == nullptr);
  one.pool.adopt(1024 * kHere, kPage, 0, false);
  CHECK(one.pool.take(kPage, 0)->address == 1024 * kHere);
  one.pool.set_policy(growing());
  CHECK(one.pool.take(kPage, 0)->address == kHere && one.sound());
}

TEST(a_waiting_block_keeps_its_pages) {
  OneSpace one;
  Block* block = one.take(kPage);
  one.pool.use(block, 3);
  CHECK(one.pool.give(block) && one.pool.idle_pages(false, 0).empty());
  CHECK(!one.pool.leave({kHere, kPage}) && one.sound());
  CHECK(one.pool.settle(block->serial) && one.pool.idle_pages(false, 0).size() == 1);
}

TEST(the_history_tells_of_pages) {
  OneSpace one;
  one.pool.record(10);
  one.pool.give(one.take(kPage));
  one.shrink();
  uint64_t lost = 0;
  std::vector<std::tuple<Action, uint64_t, uint64_t>> told;
  for (const Entry& entry : one.pool.history(&lost)) told.emplace_back(entry.action, entry.address, entry.nbytes);
  const std::vector<std::tuple<Action, uint64_t, uint64_t>> expected = {{Action::Map, kHere, kPage},
                                                                        {Action::Take, kHere, kPage},
                                                                        {Action::Give, kHere, kPage},
                                                                        {Action::Given, kHere, kPage},
                                                                        {Action::Unmap, kHere, kPage}};
  CHECK(told == expected && lost == 0);
}

TEST(each_run_of_pages_is_a_segment_of_the_tables) {
  OneSpace one;
  Block* first = one.take(kPage);
  Block* second = one.take(2 * kPage);
  one.take(kPage);
  one.pool.give(second);
  CHECK(one.pool.leave({kHere + kPage, kPage}));
  auto [segments, blocks] = rows_of(one.pool);
  CHECK(segments.size() == 1 && segments[0].nbytes == 4 * kPage && segments[0].growing == 1);  // it is still there
  one.pool.left(kHere + kPage);
  const Rows rows = rows_of(one.pool);
  CHECK(rows.segments.size() == 2 && rows.segments[0].address == kHere && rows.segments[0].nbytes == kPage);
  CHECK(rows.segments[1].address == kHere + 2 * kPage && rows.segments[1].nbytes == 2 * kPage);
  CHECK(rows.blocks.size() == 3 && rows.blocks[2].segment == 1 && first->next->state == State::Bare);
}

TEST(chance_never_breaks_a_growing_pool) {  // requests, pages that fail to come or go, at any time
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 chance(seed);
    OneSpace one;
    std::vector<Block*> held;
    std::vector<uint64_t> coming, leaving;
    const auto pull = [&](auto& from) {
      std::swap(from[chance() % from.size()], from.back());
      const auto found = from.back();
      from.pop_back();
      return found;
    };
    for (int step = 0; step < 4'000; ++step) {
      const uint64_t nbytes = chance() % 3 ? kMiB + 1 + chance() % kPage : kMiB + 1 + chance() % (4 * kPage);
      switch (chance() % 6) {
        case 0:
          if (const Piece piece = one.pool.room(nbytes, 0, 0); piece.size > 0) {
            coming.push_back(piece.address);
          } else if (piece.address != 0) {
            held.push_back(one.pool.take_at(piece.address, nbytes, 0, 0, 0));
            CHECK(held.back() != nullptr);
          }
          break;
        case 1:
          if (coming.empty()) break;
          if (const uint64_t address = pull(coming); chance() % 4 == 0) {
            one.pool.stayed(address);
          } else if (Block* block = one.pool.came(address, nbytes, 0)) {
            held.push_back(block);
          }
          break;
        case 2:
          for (const Piece piece : one.pool.idle_pages(false, 0)) {
            if (chance() % 2 && one.pool.leave(piece)) leaving.push_back(piece.address);
          }
          break;
        case 3:
          if (leaving.empty()) break;
          if (const uint64_t address = pull(leaving); chance() % 4 == 0) {
            one.pool.stayed(address);
          } else {
            one.pool.left(address);
          }
          break;
        case 4:
          if (Block* block = one.pool.take(nbytes, 0)) held.push_back(block);
          break;
        default:
          if (!held.empty()) one.pool.give(pull(held));
      }
      CHECK(one.sound());
    }
    for (const uint64_t address : coming) one.pool.stayed(address);
    for (const uint64_t address : leaving) one.pool.left(address);
    for (Block* block : held) one.pool.give(block);
    one.shrink();
    CHECK(one.now(kReservedBytes) == 0 && one.now(kActive) == 0);
    CHECK(one.pool.evict_space(kHere) && one.sound());
  }
}

// Homes

TEST(what_a_home_has_goes_to_nobody_else) {
  Scene scene;
  scene.pool.make_home(7, true);
  scene.pool.adopt(kHere, kSmallSegment, 0, true, 0, Pool::kArrival, 7);
  CHECK(scene.pool.take(512, 0) == nullptr);
  CHECK(scene.pool.take(512, 0, 0, 8) == nullptr);  // there is no home 8
  Block* block = scene.pool.take(512, 0, 0, 7);
  CHECK(block->address == kHere);
  CHECK(scene.pool.evictable(true).empty());
  CHECK(scene.pool.idle_in(7) == kSmallSegment - 512 && scene.pool.idle_in(0) == 0 && scene.pool.idle_in(8) == 0);
  scene.pool.give(block);
  CHECK(scene.pool.take(512, 0) == nullptr);
  CHECK(scene.pool.evictable(true, 7).size() == 1 && scene.sound());
}

TEST(a_home_counts_its_memory) {
  Scene scene;
  scene.pool.make_home(1, true);
  scene.pool.adopt(kHere, kSmallSegment, 0, true, 0, Pool::kArrival, 1);
  scene.pool.adopt(2 * kHere, kPage, 0, false);
  const Count count = scene.pool.reserved_by(1, kAll);
  CHECK(count.current == static_cast<int64_t>(kSmallSegment) && count.allocated == count.current && count.freed == 0);
  CHECK(scene.pool.reserved_by(1, kLargeKind).current == 0 && scene.pool.reserved_by(9, kAll).allocated == 0);
  CHECK(scene.pool.evict(kHere));
  CHECK(scene.pool.reserved_by(1, kAll).current == 0 && scene.pool.reserved_by(1, kAll).peak == count.peak);
  scene.pool.reset_peaks();
  scene.pool.reset_accumulated();
  CHECK(scene.pool.reserved_by(1, kAll).peak == 0 && scene.pool.reserved_by(1, kAll).freed == 0 && scene.sound());
}

TEST(a_home_goes_when_it_has_nothing) {
  Scene scene;
  CHECK(!scene.pool.drop_home(1));
  scene.pool.make_home(1, true);
  scene.pool.adopt(kHere, kSmallSegment, 0, true, 0, Pool::kArrival, 1);
  CHECK(!scene.pool.drop_home(1));
  scene.pool.evict(kHere);
  CHECK(scene.pool.drop_home(1) && scene.sound());
  CHECK(scene.pool.reserved_by(1, kAll).allocated == static_cast<int64_t>(kSmallSegment));  // what it counted stays
}

TEST(a_home_without_splits_gives_whole_blocks) {
  Scene scene;
  scene.pool.make_home(1, false);
  scene.pool.adopt(kHere, kSmallSegment, 0, true, 0, Pool::kArrival, 1);
  CHECK(scene.pool.take(512, 0, 0, 1)->size == kSmallSegment);
  CHECK(scene.now(kInactiveSplit) == 0 && scene.sound());
}

TEST(a_deferred_block_names_its_home) {
  Scene scene;
  scene.pool.make_home(5, true);
  scene.pool.adopt(kHere, kSmallSegment, 0, true, 0, Pool::kArrival, 5);
  Block* block = scene.pool.take(512, 0, 0, 5);
  scene.pool.use(block, 2);
  scene.pool.give(block);
  const auto waiting = scene.pool.deferred();
  CHECK(waiting.size() == 1 && waiting[0].home == 5 && waiting[0].uses == std::vector<uint64_t>{2});
}

TEST(a_home_may_have_growing_segments) {
  Scene scene;
  scene.pool.set_policy(growing());
  scene.pool.make_home(1, true);
  scene.pool.adopt_space(kHere, 4 * kPage, kPage, 0, false, 0, 1);
  CHECK(is(scene.pool.room(2 * kMiB, 0, 0), 0, 0));
  const Piece piece = scene.pool.room(2 * kMiB, 0, 1);
  CHECK(is(piece, kHere, kPage));
  scene.pool.give(scene.pool.came(piece.address, 2 * kMiB, 0));
  CHECK(scene.pool.reserved_by(1, kAll).current == static_cast<int64_t>(kPage) && scene.sound());
  CHECK(scene.pool.idle_pages(false, 0).empty() && scene.pool.idle_pages(false, 1).size() == 1);
  CHECK(scene.pool.leave(piece) && scene.pool.left(kHere) && !scene.pool.drop_home(1));
  CHECK(scene.pool.evict_space(kHere) && scene.pool.drop_home(1) && scene.sound());
}

// Policy

TEST(sizes_are_rounded_to_parts_of_powers_of_two) {
  Policy policy;
  policy.divisions.fill(4);
  policy.divides = true;
  CHECK(policy.block_size(1) == 512 && policy.block_size(1200) == 1536);  // too small to be divided
  CHECK(policy.block_size(4097) == 5 * 1024 && policy.block_size(5 * kMiB) == 5 * kMiB);
  CHECK(policy.block_size(5 * kMiB + 1) == 6 * kMiB);
  policy.divisions[2] = 1;  // 4 MiB up to 8
  CHECK(policy.block_size(5 * kMiB + 1) == 5 * kMiB + 512);
  policy.divisions[0] = 0;  // 1 MiB and all below
  CHECK(policy.block_size(4097) == 4608);
}

TEST(a_block_is_as_large_as_the_policy_says) {
  Scene scene;
  Policy policy;
  policy.divisions.fill(2);
  policy.divides = true;
  scene.pool.set_policy(policy);
  scene.pool.adopt(kHere, kSmallSegment, 0, true);
  Block* block = scene.pool.take(5000, 0);
  CHECK(block->size == 6144 && block->requested == 5000 && scene.sound());
  scene.pool.set_policy(Policy{});
  CHECK(scene.pool.take(5000, 0)->size == 5120 && block->size == 6144 && scene.sound());
}

TEST(large_blocks_stay_whole_from_max_split_on) {
  Scene scene;
  Policy policy;
  policy.max_split = 40 * kMiB;
  scene.pool.set_policy(policy);
  scene.pool.adopt(kHere, 60 * kMiB, 0, false);
  CHECK(scene.pool.take(30 * kMiB, 0) == nullptr);  // nor do they go to requests below it
  CHECK(scene.pool.take(40 * kMiB, 0) == nullptr);  // 20 MiB would be wasted
  Block* block = scene.pool.take(40 * kMiB + 512, 0);
  CHECK(block->size == 60 * kMiB);
  CHECK(scene.pool.oversize(false).current == 1 && scene.pool.oversize(true).current == 1);
  scene.pool.give(block);
  policy.max_non_split_rounding = 20 * kMiB + 512;
  scene.pool.set_policy(policy);
  scene.pool.give(scene.pool.take(40 * kMiB, 0));
  CHECK(scene.pool.evict(kHere) && scene.sound());
  const Count blocks = scene.pool.oversize(false), segments = scene.pool.oversize(true);
  CHECK(blocks.current == 0 && blocks.peak == 1 && blocks.allocated == 2 && blocks.freed == 2);
  CHECK(segments.current == 0 && segments.allocated == 1 && segments.freed == 1);
  scene.pool.reset_peaks();
  scene.pool.reset_accumulated();
  CHECK(scene.pool.oversize(false).peak == 0 && scene.pool.oversize(true).freed == 0);
}

TEST(blocks_below_max_split_are_split_as_ever) {
  Scene scene;
  Policy policy;
  policy.max_split = 40 * kMiB;
  scene.pool.set_policy(policy);
  scene.pool.adopt(kHere, kPage, 0, false);
  CHECK(scene.pool.take(2 * kMiB, 0)->size == 2 * kMiB);
  CHECK(scene.pool.oversize(false).allocated == 0 && scene.pool.oversize(true).allocated == 0 && scene.sound());
}

TEST(segments_have_the_size_of_the_policy) {
  Policy policy;
  CHECK(policy.segment_size(512) == kSmallSegment && policy.segment_size(2 * kMiB) == kLargeSegment);
  CHECK(policy.segment_size(11 * kMiB) == 12 * kMiB);
  policy.large_segment = 12 * kMiB;
  CHECK(policy.segment_size(2 * kMiB) == 12 * kMiB && policy.segment_size(10 * kMiB) == 10 * kMiB);
  policy.fine = true;
  CHECK(policy.segment_size(700 * 1024) == 2100 * 1024 + 12 * 1024);  // three blocks, in steps of 64 KiB
  CHECK(policy.segment_size(5 * kMiB) == 5 * kMiB);
}

TEST(idle_segments_grow_older_with_each_request) {
  Scene scene;
  Policy policy;
  policy.ages = true;
  scene.pool.set_policy(policy);
  scene.pool.adopt(kHere, kPage, 0, false);
  Block* block = scene.pool.take(kPage, 0);
  for (int i = 0; i < 3; ++i) scene.pool.take(2 * kMiB, 0);
  scene.pool.give(block);
  CHECK(scene.pool.evictable(false)[0].age == 0);
  scene.pool.take(kMiB, 0);       // the small kind's clock
  scene.pool.take(30 * kMiB, 5);  // any queue's request counts
  scene.pool.take(30 * kMiB, 0);
  CHECK(scene.pool.evictable(false)[0].age == 2 && !scene.pool.evictable(false)[0].growing);
  scene.pool.set_policy(Policy{});
  scene.pool.take(30 * kMiB, 0);
  CHECK(scene.pool.evictable(false)[0].age == 2 && scene.sound());
}

TEST(who_brought_a_segment_is_served_from_it) {
  Scene scene;
  Block* block = scene.pool.adopt_for(2 * kMiB, kHere, kPage, 0, 0, 0);
  CHECK(block->address == kHere && block->size == 2 * kMiB && scene.now(kReservedBytes) == static_cast<int64_t>(kPage));
  CHECK(scene.pool.adopt_for(2 * kPage, 2 * kHere, kPage, 0, 0, 0) == nullptr);  // too small, but it is there
  CHECK(scene.pool.adopt_for(0, 3 * kHere, kPage, 0, 0, 0) == nullptr);
  CHECK(scene.pool.evictable(false).size() == 1 && scene.pool.evictable(true).size() == 1 && scene.sound());
}

// What broken() finds

TEST(a_bare_piece_that_is_not_listed_is_found) {
  OneSpace one;
  PoolTest::segment(one.pool, kHere).free_list->bare.clear();
  CHECK(one.fault() == "the bare pieces and the block disagree");
}

TEST(a_listed_piece_that_has_memory_is_found) {
  OneSpace one;
  Block* block = one.take(kPage);
  block->segment->free_list->bare.emplace(block->address, block);
  CHECK(one.fault() == "the bare pieces and the block disagree");
}

TEST(a_bare_piece_of_nowhere_is_found) {
  OneSpace one;
  Block stray;
  PoolTest::segment(one.pool, kHere).free_list->bare.emplace(512, &stray);
  CHECK(one.fault() == "a list of bare pieces holds one of no segment");
}

TEST(bare_neighbours_that_were_not_merged_are_found) {
  OneSpace one;
  one.pool.room(kPage, 0, 0);
  Segment& segment = PoolTest::segment(one.pool, kHere);
  segment.first->state = State::Bare;
  segment.free_list->bare.emplace(kHere, segment.first);
  CHECK(one.fault() == "two bare neighbours were not merged");
}

TEST(a_piece_that_is_not_made_of_pages_is_found) {
  OneSpace one;
  PoolTest::segment(one.pool, kHere).page = 3 * kPage;
  CHECK(one.fault() == "a piece without memory is not made of pages");
}

TEST(a_piece_on_its_way_where_nothing_grows_is_found) {
  Scene scene;
  scene.pool.adopt(kHere, kPage, 0, false);
  Segment& segment = PoolTest::segment(scene.pool, kHere);
  segment.free_list->erase(segment.first);
  segment.first->state = State::Leaving;
  CHECK(scene.fault() == "a piece without memory in a segment that does not grow");
}

TEST(a_piece_on_its_way_with_users_is_found) {
  OneSpace one;
  one.pool.room(kPage, 0, 0);
  PoolTest::segment(one.pool, kHere).first->uses.push_back(1);
  CHECK(one.fault() == "a piece without memory is used by a queue");
}

TEST(memory_that_nobody_counted_is_found) {
  OneSpace one;
  one.pool.room(kPage, 0, 0);
  PoolTest::segment(one.pool, kHere).first->state = State::Leaving;
  CHECK(one.fault() == "what a home counts differs from a recount");
}

TEST(a_home_that_counts_wrong_is_found) {
  Scene scene;
  scene.pool.make_home(1, true);
  PoolTest::home(scene.pool, 1).reserved.add(true, 512);
  CHECK(scene.fault() == "what a home counts differs from a recount");
}

TEST(a_segment_in_a_strange_list_is_found) {
  Scene scene;
  scene.pool.make_home(1, true);
  scene.pool.adopt(kHere, kPage, 0, false);
  PoolTest::segment(scene.pool, kHere).queue = 4;
  CHECK(scene.fault() == "a segment's free list is not its queue's");
}

TEST(growing_segments_that_are_miscounted_are_found) {
  OneSpace one;
  ++PoolTest::growing(one.pool);
  CHECK(one.fault() == "the growing segments are not as many as counted");
}

TEST(a_rule_that_is_forgotten_is_found) {
  OneSpace one;
  PoolTest::plain(one.pool) = true;
  CHECK(one.fault() == "a rule that chooses blocks is forgotten");
}

// Threads

// Everything that two threads may do at once: growing segments, plain ones, homes, lending, waiting, other rules.
TEST(eight_threads_share_growing_segments_and_homes) {
  Pool pool;
  pool.set_policy(growing());
  for (const uint32_t home : {1, 2}) pool.make_home(home, home == 1);
  for (uint64_t number = 0; number < 3; ++number)  // of homes 0 to 2
    pool.adopt_space((1 + number) * 100 * kPage, 8 * kPage, kPage, 0, false, 0, static_cast<uint32_t>(number));
  pool.record(1000);
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 8; ++number) {
    threads.emplace_back([&pool, number] {
      std::mt19937_64 chance(number);
      const uint32_t home = static_cast<uint32_t>(number % 3), own = static_cast<uint32_t>(10 + number);
      const uint64_t plain = (1000 + number) * 100 * kPage;  // a segment that is not growing, when it is there
      bool is_there = false;
      std::vector<Block*> mine;
      for (int step = 0; step < 2'000; ++step) {
        const uint64_t nbytes = kMiB + 1 + chance() % (2 * kPage);
        if (mine.size() < 4 && chance() % 2) {
          const uint32_t lender = static_cast<uint32_t>(chance() % 3);
          Block* block = lender == home ? pool.take(nbytes, 0, 0, home) : pool.take(nbytes, 0, 0, lender, true);
          if (block == nullptr) {
            const Piece piece = pool.room(nbytes, 0, home);
            if (piece.size > 0 && chance() % 8 == 0) {
              pool.stayed(piece.address);
            } else if (piece.address != 0) {
              block = piece.size == 0 ? pool.take_at(piece.address, nbytes, 0, 0, home)
                                      : pool.came(piece.address, nbytes, 0);
            }
          }
          if (block != nullptr) mine.push_back(block);
        } else if (!mine.empty()) {
          std::swap(mine[chance() % mine.size()], mine.back());
          if (chance() % 4 == 0) pool.use(mine.back(), 9);
          pool.give(mine.back());
          mine.pop_back();
        }
        if (chance() % 8 == 0) {
          for (const Deferred& waiting : pool.deferred()) {  // anybody's
            pool.heard(waiting.serial);
            pool.settle(waiting.serial);
          }
        }
        if (chance() % 16 == 0) {
          if (is_there) {
            is_there = !pool.evict(plain);
          } else if (Block* block = pool.adopt_for(nbytes, plain, 2 * kPage, 0, 0, home)) {
            is_there = true;
            mine.push_back(block);
          } else {
            is_there = true;  // and too small for that
          }
        }
        if (chance() % 64 == 0) {
          Policy policy = growing();
          policy.ages = chance() % 2 == 0;
          policy.max_split = chance() % 2 == 0 ? kUnlimited : kPage;
          policy.growing = chance() % 4 != 0;
          pool.set_policy(policy);
          pool.make_home(own, true);
          pool.drop_home(own);
        }
        if (chance() % 16 == 0) {
          for (const Piece piece : pool.idle_pages(false, home)) {
            if (!pool.leave(piece)) continue;
            if (chance() % 4 == 0) {
              pool.stayed(piece.address);
            } else {
              pool.left(piece.address);
            }
          }
        }
        if (step % 200 == 0) {
          pool.evictable(false, home, true, true);
          pool.record(step % 400 == 0 ? 100 : 1000, true, 0, true);
          pool.reserved_by(home, kAll);
          pool.idle_in(home);
          rows_of(pool);
        }
      }
      for (Block* block : mine) pool.give(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(pool.broken() == nullptr);
  for (const Deferred& waiting : pool.deferred()) CHECK(pool.settle(waiting.serial));
  for (uint64_t number = 0; number < 8; ++number) {
    pool.evict((1000 + number) * 100 * kPage);
    CHECK(!pool.owns((1000 + number) * 100 * kPage));
  }
  for (uint64_t number = 0; number < 3; ++number) {
    for (const Piece piece : pool.idle_pages(false, static_cast<uint32_t>(number))) {
      CHECK(pool.leave(piece));
      pool.left(piece.address);
    }
    CHECK(pool.evict_space((1 + number) * 100 * kPage));
  }
  CHECK(pool.count(kReservedBytes, kAll).current == 0 && pool.broken() == nullptr);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
