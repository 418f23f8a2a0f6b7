// Statistics and memory history of a pool.
#include <time.h>

#include <algorithm>
#include <stdexcept>

#include "pool/pool.hpp"

namespace forebay {
namespace {

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

Stat Pool::count(unsigned metric, unsigned size_class) const {
  if (metric >= kMetrics || size_class >= kSizeClasses) throw std::out_of_range("unknown metric or size class");
  PoolLock lock(mutex_);
  return statistics_.read(static_cast<Metric>(metric), static_cast<SizeClass>(size_class));
}

std::vector<int64_t> Pool::counts() const {
  std::vector<int64_t> numbers;
  numbers.reserve(size_t{4} * kMetrics * kSizeClasses);
  PoolLock lock(mutex_);
  for (unsigned metric = 0; metric < kMetrics; ++metric) {
    for (unsigned size_class = 0; size_class < kSizeClasses; ++size_class) {
      const Stat stat = statistics_.read(static_cast<Metric>(metric), static_cast<SizeClass>(size_class));
      numbers.insert(numbers.end(), {stat.current, stat.peak, stat.allocated, stat.freed});
    }
  }
  return numbers;
}

std::vector<int64_t> Pool::oversize() const {
  const Stat blocks = oversize(false), segments = oversize(true);
  return {blocks.current,   blocks.peak,   blocks.allocated,   blocks.freed,
          segments.current, segments.peak, segments.allocated, segments.freed};
}

std::vector<int64_t> Pool::reserved_by(uint32_t pool_number) const {
  std::vector<int64_t> numbers;
  for (unsigned size_class = 0; size_class < kSizeClasses; ++size_class) {
    const Stat stat = reserved_by(pool_number, static_cast<SizeClass>(size_class));
    numbers.insert(numbers.end(), {stat.current, stat.peak, stat.allocated, stat.freed});
  }
  return numbers;
}

Stat Pool::oversize(bool segments) const {
  PoolLock lock(mutex_);
  return (segments ? oversize_segments_ : oversize_blocks_).read(kAllSizes);
}

void Pool::reset_peaks() {
  PoolLock lock(mutex_);
  statistics_.reset_peaks();
  oversize_blocks_.reset_peak();
  oversize_segments_.reset_peak();
  for (auto& [pool_number, partition] : partitions_) partition->reserved.reset_peak();
}

void Pool::reset_accumulated() {
  PoolLock lock(mutex_);
  statistics_.reset_accumulated();
  oversize_blocks_.reset_accumulated();
  oversize_segments_.reset_accumulated();
  for (auto& [pool_number, partition] : partitions_) partition->reserved.reset_accumulated();
}

uint64_t Pool::begin_meter() {
  PoolLock lock(mutex_);
  return statistics_.begin_meter();
}

std::vector<int64_t> Pool::meter(uint64_t number, bool end) {
  PoolLock lock(mutex_);
  const MeterPeaks peaks = statistics_.meter(number);
  if (end) statistics_.end_meter(number);
  return {peaks.allocated, peaks.reserved, peaks.allocated_before, peaks.reserved_before};
}

void Pool::record_history(size_t capacity, bool stacks, uint32_t skip, bool keep) {
  PoolLock lock(mutex_);
  auto ring = capacity == 0 ? nullptr : std::make_unique<Ring<Entry>>(capacity);
  keep = keep && ring && ring_;
  if (keep) {
    for (size_t age = ring_->size() - std::min(capacity, ring_->size()); age < ring_->size(); ++age)
      ring->push((*ring_)[age]);
  } else {
    note_ = 0;  // notes refer to labels, which a new recording does not share
  }
  ring_ = std::move(ring);
  recording_ = capacity != 0;
  stacks_ = stacks;
  skip_ = skip;
}

void Pool::compact_stacks(StackTable* stacks) {
  PoolLock lock(mutex_);
  StackTable compacted;
  std::unordered_map<uint32_t, uint32_t> moved;  // complete before any change, as it may throw
  const auto move = [&](uint32_t stack) {
    if (moved.count(stack) == 0) moved[stack] = stacks->move_to(&compacted, stack);
  };
  move(0);
  for (const auto& [address, segment] : segments_) {
    move(segment.stack);
    for (const Block* block = segment.first; block != nullptr; block = block->next) move(block->stack);
  }
  for (auto& [address, segment] : segments_) {
    segment.stack = moved.at(segment.stack);
    for (Block* block = segment.first; block != nullptr; block = block->next) block->stack = moved.at(block->stack);
  }
  *stacks = std::move(compacted);
}

void Pool::record_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack, uint32_t pool_number) {
  PoolLock lock(mutex_);
  if (ring_) record_event(Action::Oom, free, nbytes, queue, stack, pool_number);
}

void Pool::record_snapshot_event(uint32_t pool_number, uint64_t nbytes) {
  PoolLock lock(mutex_);
  if (!pool_number) nbytes = static_cast<uint64_t>(statistics_.read(kActiveBytes, kAllSizes).current);
  if (ring_) record_event(Action::Snapshot, 0, nbytes, 0, 0, pool_number);
}

void Pool::record_annotation(const Block* block, uint32_t stack) {
  PoolLock lock(mutex_);
  const Segment& segment = *block->segment;
  const uint32_t pool_number = segment.free_list->partition->pool_number;
  if (ring_) record_event(Action::Annotate, block->address, block->requested, segment.queue, stack, pool_number);
}

std::vector<Entry> Pool::history(uint64_t* lost) const {
  PoolLock lock(mutex_);
  std::vector<Entry> entries;
  *lost = ring_ ? ring_->lost() : 0;
  if (!ring_) return entries;
  entries.reserve(ring_->size());
  for (size_t age = 0; age < ring_->size(); ++age) entries.push_back((*ring_)[age]);
  return entries;
}

void Pool::record_event(Action action, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack,
                        uint32_t pool_number) {
  if (skip_ >> static_cast<uint32_t>(action) & 1) return;
  ring_->push(Entry{now_ns(), address, nbytes, queue, stacks_ ? stack : 0, action, pool_number, note_});
}

}  // namespace forebay
