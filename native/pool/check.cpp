// Every structural rule of a Pool, in the order a reader would ask. Cheap enough for every step of a test.
#include "pool/pool.hpp"

namespace forebay {
namespace {

uint64_t memory_of(const Segment& segment) {
  uint64_t there = 0;
  for (const Block* block = segment.first; block != nullptr; block = block->next) {
    if (block->state != State::Bare && block->state != State::Coming) there += block->size;
  }
  return there;
}

}  // namespace

const char* Pool::broken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t recount[kMetrics][2] = {};
  size_t live = 0, awaiting = 0, free = 0, bare_pieces = 0, growing = 0, heaps = 0;
  uint64_t end_of_last = 0;
  const auto awaits = [&](const Block* block) {
    const auto at = awaiting_.find(block->serial);
    return at != awaiting_.end() && at->second == block;
  };

  for (const auto& [address, segment] : segments_) {
    const int side = segment.small ? 0 : 1;
    const auto add = [&](Metric metric, uint64_t much) { recount[metric][side] += static_cast<int64_t>(much); };
    if (address != segment.address) return "a segment is filed under another address";
    if (address < end_of_last) return "two segments overlap";
    if (segment.first == nullptr || segment.first->prev != nullptr)
      return "a segment does not start with its first block";
    const auto& siblings = segment.free_list->home->lists[segment.small ? 1 : 0];
    const auto its_own = siblings.find(segment.queue);
    if (its_own == siblings.end() || its_own->second.get() != segment.free_list)
      return "a segment's free list is not its queue's";
    if (segment.growing()) {
      ++growing;
    } else {
      add(kSegment, 1);
    }
    size_t rooms = 0;
    if (segment.heap()) {
      ++heaps;
      const auto filed = segment.free_list->heaps.find({segment.available(), segment.rank});
      if (filed == segment.free_list->heaps.end() || filed->second != &segment)
        return "a heap is not filed by its room";
    }

    uint64_t at = address;
    for (const Block* block = segment.first; block != nullptr; at += block->size, block = block->next) {
      if (block->address != at) return "a gap or an overlap between neighbours";
      if (block->segment != &segment || block->rank != segment.rank) return "a block names another segment";
      if (block->next != nullptr && block->next->prev != block) return "neighbours do not agree";
      if (block->size == 0 || block->size % kGrain != 0) return "a size that no block may have";
      const bool is_free = block->state == State::Free;
      const bool is_bare = block->state == State::Bare;
      if (segment.growing()) {
        bare_pieces += is_bare ? 1 : 0;
        const auto& bare = segment.free_list->bare;
        const auto found = bare.find(block->address);
        if (is_bare != (found != bare.end() && found->second == block)) return "the bare pieces and the block disagree";
        if (is_bare && block->next != nullptr && block->next->state == State::Bare)
          return "two bare neighbours were not merged";
        if (is_bare || block->state == State::Coming || block->state == State::Leaving) {
          if (block->address % segment.page != address % segment.page || block->size % segment.page != 0)
            return "a piece without memory is not made of pages";
        }
      } else if (segment.heap() && block->state == State::Room) {
        ++rooms;
        const auto found = segment.rooms->find({block->size, block->address});
        if (found == segment.rooms->end() || found->second != block) return "the rooms and the block disagree";
        if (block->next != nullptr && block->next->state == State::Room) return "two rooms were not merged";
      } else if (block->state > State::Awaiting) {
        return "a piece without memory in a segment that does not grow";
      }
      if (is_free != segment.free_list->contains(block)) return "the free list and the block disagree";
      if ((block->state == State::Live) != (live_.find(block->address) == block))
        return "the live table and the block disagree";
      if ((block->state == State::Awaiting) != awaits(block)) {
        return "the waiting list and the block disagree";
      }
      if (is_free) {
        ++free;
        if (!segment.heap() && block->next != nullptr && block->next->state == State::Free)
          return "two free neighbours were not merged";
        if (!block->uses.empty()) return "a free block is used by a queue";
        if (block->split() && segment.splits()) {
          add(kInactiveSplit, 1);
          add(kInactiveSplitBytes, block->size);
        }
        continue;
      }
      if (block->state > State::Awaiting) {
        if (!block->uses.empty()) return "a piece without memory is used by a queue";
        continue;
      }
      if (block->requested == 0 || block->requested > block->size) return "a block is smaller than what was asked";
      add(kActive, 1);
      add(kActiveBytes, block->size);
      add(kRequestedBytes, block->requested);
      if (block->state == State::Awaiting) {
        ++awaiting;
        continue;
      }
      ++live;
      add(kAllocation, 1);
      add(kAllocatedBytes, block->size);
    }
    if (segment.heap() && rooms != segment.rooms->size()) return "a heap's rooms are not as many as counted";
    end_of_last = address + segment.size;
    if (at != end_of_last) return "the blocks do not cover the segment";
    add(kReservedBytes, memory_of(segment));
  }

  size_t listed = 0, bare_listed = 0, heaps_listed = 0;
  bool homes_agree = true;
  const auto count = [&](const Home& home, uint32_t number) {
    int64_t reserved[2] = {};
    for (const auto& [address, segment] : segments_) {
      if (segment.free_list->home == &home) reserved[segment.small ? 0 : 1] += static_cast<int64_t>(memory_of(segment));
    }
    homes_agree = homes_agree && home.number == number && home.reserved.read(kSmallKind).current == reserved[0] &&
                  home.reserved.read(kLargeKind).current == reserved[1];
    for (const auto& lists : home.lists) {
      for (const auto& [queue, list] : lists) {
        listed += list->count();
        bare_listed += list->bare.size();
        heaps_listed += list->heaps.size();
      }
    }
  };
  count(common_, 0);
  for (const auto& [number, home] : homes_) count(*home, number);
  if (!homes_agree) return "what a home counts differs from a recount";
  if (listed != free) return "a free list holds a block of no segment";
  if (bare_listed != bare_pieces) return "a list of bare pieces holds one of no segment";
  if (heaps_listed != heaps) return "a list of heaps holds one that is no segment";
  if (growing != growing_) return "the growing segments are not as many as counted";
  if (plain_ != plain()) return "a rule that chooses blocks is forgotten";
  if (live_.count() != live) return "the live table holds a block of no segment";
  if (awaiting_.size() != awaiting) return "the waiting list holds a block of no segment";

  for (unsigned metric = 0; metric < kMetrics; ++metric) {
    const int64_t* counted = recount[metric];
    const int64_t expected[kKinds] = {counted[0] + counted[1], counted[0], counted[1]};
    for (unsigned kind = 0; kind < kKinds; ++kind) {
      const Count count = ledger_.read(static_cast<Metric>(metric), static_cast<Kind>(kind));
      if (count.current != expected[kind]) return "the ledger differs from a recount";
      if (count.peak < count.current) return "a peak is below what is there now";
    }
  }
  return nullptr;
}

}  // namespace forebay
