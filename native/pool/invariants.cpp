// Structural invariants of a Pool. The check is cheap enough to run after every step of a test.
#include "pool/pool.hpp"

namespace forebay {
namespace {

uint64_t committed_bytes(const Segment& segment) {
  uint64_t total = 0;
  for (const Block* block = segment.first; block != nullptr; block = block->next) {
    if (block->state != State::Uncommitted && block->state != State::Committing) total += block->size;
  }
  return total;
}

}  // namespace

const char* Pool::check_invariants() const {
  PoolLock lock(mutex_);
  int64_t recount[kMetrics][2] = {};
  size_t live = 0, pending = 0, free = 0, uncommitted_ranges = 0, expandable = 0, heaps = 0;
  uint64_t end_of_last = 0;
  const auto is_pending = [&](const Block* block) {
    const auto at = pending_frees_.find(block->serial);
    return at != pending_frees_.end() && at->second == block;
  };

  for (const auto& [address, segment] : segments_) {
    const int size_class = segment.small ? 0 : 1;
    const auto add = [&](Metric metric, uint64_t amount) {
      recount[metric][size_class] += static_cast<int64_t>(amount);
    };
    if (address != segment.address) return "a segment is stored under another address";
    if (address < end_of_last) return "two segments overlap";
    if (segment.first == nullptr || segment.first->prev != nullptr)
      return "a segment does not start with its first block";
    const auto& lists = segment.free_list->partition->lists[segment.small ? 1 : 0];
    const auto own = lists.find(segment.queue);
    if (own == lists.end() || own->second.get() != segment.free_list)
      return "a segment is in the free list of another queue";
    if (segment.expandable()) {
      ++expandable;
    } else {
      add(kSegment, 1);
    }
    size_t gaps = 0;
    if (segment.is_heap()) {
      ++heaps;
      const auto entry = segment.free_list->heaps.find({segment.largest_gap(), segment.rank, address});
      if (entry == segment.free_list->heaps.end() || entry->second != &segment)
        return "a heap is not sorted by its largest gap";
    }

    uint64_t at = address;
    for (const Block* block = segment.first; block != nullptr; at += block->size, block = block->next) {
      if (block->address != at) return "neighbouring blocks are not adjacent";
      if (block->segment != &segment || block->rank != segment.rank) return "a block refers to another segment";
      if (block->next != nullptr && block->next->prev != block)
        return "neighbouring blocks are not linked to each other";
      if (block->size == 0 || block->size % kMinAlignment != 0) return "a block has an invalid size";
      const bool is_free = block->state == State::Free;
      const bool is_uncommitted = block->state == State::Uncommitted;
      if (segment.expandable()) {
        uncommitted_ranges += is_uncommitted ? 1 : 0;
        const auto& ranges = segment.free_list->uncommitted;
        const auto found = ranges.find(block->address);
        if (is_uncommitted != (found != ranges.end() && found->second == block))
          return "the table of uncommitted ranges and the block disagree";
        if (is_uncommitted && block->next != nullptr && block->next->state == State::Uncommitted)
          return "two neighbouring uncommitted ranges were not merged";
        if (is_uncommitted || block->state == State::Committing || block->state == State::Decommitting) {
          if (block->address % segment.page_size != address % segment.page_size || block->size % segment.page_size != 0)
            return "an uncommitted range does not consist of whole pages";
        }
      } else if (segment.is_heap() && block->state == State::Gap) {
        ++gaps;
        const auto found = segment.gaps->find({block->size, block->address});
        if (found == segment.gaps->end() || found->second != block) return "the table of gaps and the block disagree";
        if (block->next != nullptr && block->next->state == State::Gap) return "two neighbouring gaps were not merged";
      } else if (block->state > State::PendingFree) {
        return "an uncommitted range in a segment that is not expandable";
      }
      if (is_free != segment.free_list->contains(block)) return "the free list and the block disagree";
      if ((block->state == State::Live) != (live_.find(block->address) == block))
        return "the live table and the block disagree";
      if ((block->state == State::PendingFree) != is_pending(block)) {
        return "the table of pending frees and the block disagree";
      }
      if (is_free) {
        ++free;
        if (!segment.is_heap() && block->next != nullptr && block->next->state == State::Free)
          return "two neighbouring free blocks were not merged";
        if (!block->users.empty()) return "a free block has users";
        if (block->is_split() && segment.counts_splits()) {
          add(kInactiveSplit, 1);
          add(kInactiveSplitBytes, block->size);
        }
        continue;
      }
      if (block->state > State::PendingFree) {
        if (!block->users.empty()) return "an uncommitted range has users";
        continue;
      }
      if (block->requested == 0 || block->requested > block->size) return "a block is smaller than its request";
      add(kActive, 1);
      add(kActiveBytes, block->size);
      add(kRequestedBytes, block->requested);
      if (block->state == State::PendingFree) {
        ++pending;
        continue;
      }
      ++live;
      add(kAllocation, 1);
      add(kAllocatedBytes, block->size);
    }
    if (segment.is_heap() && gaps != segment.gaps->size()) return "the table of gaps has entries of other heaps";
    end_of_last = address + segment.size;
    if (at != end_of_last) return "the blocks do not cover the segment";
    add(kReservedBytes, committed_bytes(segment));
  }

  size_t listed = 0, ranges_listed = 0, heaps_listed = 0;
  bool partitions_agree = true;
  const auto count = [&](const PoolPartition& partition, uint32_t pool_number) {
    int64_t reserved[2] = {};
    for (const auto& [address, segment] : segments_) {
      if (segment.free_list->partition == &partition)
        reserved[segment.small ? 0 : 1] += static_cast<int64_t>(committed_bytes(segment));
    }
    partitions_agree = partitions_agree && partition.pool_number == pool_number &&
                       partition.reserved.read(kSmallClass).current == reserved[0] &&
                       partition.reserved.read(kLargeClass).current == reserved[1];
    for (const auto& lists : partition.lists) {
      for (const auto& [queue, list] : lists) {
        listed += list->count();
        ranges_listed += list->uncommitted.size();
        heaps_listed += list->heaps.size();
      }
    }
  };
  count(default_partition_, 0);
  for (const auto& [pool_number, partition] : partitions_) count(*partition, pool_number);
  if (!partitions_agree) return "the reserved bytes of a partition differ from a recount";
  if (listed != free) return "a free list holds a block that is in no segment";
  if (ranges_listed != uncommitted_ranges) return "a table of uncommitted ranges holds one that is in no segment";
  if (heaps_listed != heaps) return "a table of heaps holds one that is no segment";
  if (expandable != expandable_segments_) return "the number of expandable segments differs from a recount";
  if (best_fit_only_ != is_best_fit_only()) return "the cached best_fit_only_ is outdated";
  if (live_.count() != live) return "the live table holds a block that is in no segment";
  if (pending_frees_.size() != pending) return "the table of pending frees holds a block that is in no segment";

  for (unsigned metric = 0; metric < kMetrics; ++metric) {
    const int64_t* counted = recount[metric];
    const int64_t expected[kSizeClasses] = {counted[0] + counted[1], counted[0], counted[1]};
    for (unsigned size_class = 0; size_class < kSizeClasses; ++size_class) {
      const Stat stat = statistics_.read(static_cast<Metric>(metric), static_cast<SizeClass>(size_class));
      if (stat.current != expected[size_class]) return "the statistics differ from a recount";
      if (stat.peak < stat.current) return "a peak is below the current value";
    }
  }
  return nullptr;
}

}  // namespace forebay
