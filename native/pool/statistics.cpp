// What a pool tells of itself: its numbers and its history.
#include <time.h>

#include <algorithm>
#include <stdexcept>

#include "pool/pool.hpp"

namespace forebay {
namespace {

using Lock = std::lock_guard<std::mutex>;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

Count Pool::count(unsigned metric, unsigned kind) const {
  if (metric >= kMetrics || kind >= kKinds) throw std::out_of_range("no metric or kind has such a number");
  Lock lock(mutex_);
  return ledger_.read(static_cast<Metric>(metric), static_cast<Kind>(kind));
}

std::vector<int64_t> Pool::counts() const {
  std::vector<int64_t> numbers;
  numbers.reserve(size_t{4} * kMetrics * kKinds);
  Lock lock(mutex_);
  for (unsigned metric = 0; metric < kMetrics; ++metric) {
    for (unsigned kind = 0; kind < kKinds; ++kind) {
      const Count count = ledger_.read(static_cast<Metric>(metric), static_cast<Kind>(kind));
      numbers.insert(numbers.end(), {count.current, count.peak, count.allocated, count.freed});
    }
  }
  return numbers;
}

std::vector<int64_t> Pool::oversize() const {
  const Count blocks = oversize(false), segments = oversize(true);
  return {blocks.current,   blocks.peak,   blocks.allocated,   blocks.freed,
          segments.current, segments.peak, segments.allocated, segments.freed};
}

std::vector<int64_t> Pool::reserved_by(uint32_t number) const {
  std::vector<int64_t> numbers;
  for (unsigned kind = 0; kind < kKinds; ++kind) {
    const Count count = reserved_by(number, static_cast<Kind>(kind));
    numbers.insert(numbers.end(), {count.current, count.peak, count.allocated, count.freed});
  }
  return numbers;
}

Count Pool::oversize(bool segments) const {
  Lock lock(mutex_);
  return (segments ? oversize_segments_ : oversize_blocks_).read(kAll);
}

void Pool::reset_peaks() {
  Lock lock(mutex_);
  ledger_.reset_peaks();
  oversize_blocks_.reset_peak();
  oversize_segments_.reset_peak();
  for (auto& [number, home] : homes_) home->reserved.reset_peak();
}

void Pool::reset_accumulated() {
  Lock lock(mutex_);
  ledger_.reset_accumulated();
  oversize_blocks_.reset_accumulated();
  oversize_segments_.reset_accumulated();
  for (auto& [number, home] : homes_) home->reserved.reset_accumulated();
}

uint64_t Pool::begin_meter() {
  Lock lock(mutex_);
  return ledger_.begin_meter();
}

std::vector<int64_t> Pool::meter(uint64_t number, bool end) {
  Lock lock(mutex_);
  const Peaks peaks = ledger_.meter(number);
  if (end) ledger_.end_meter(number);
  return {peaks.allocated, peaks.reserved, peaks.allocated_before, peaks.reserved_before};
}

void Pool::record(size_t most, bool stacks, uint32_t skip, bool keep) {
  Lock lock(mutex_);
  auto ring = most == 0 ? nullptr : std::make_unique<Ring<Entry>>(most);
  keep = keep && ring && ring_;
  if (keep) {
    for (size_t age = ring_->size() - std::min(most, ring_->size()); age < ring_->size(); ++age)
      ring->push((*ring_)[age]);
  }
  ring_ = std::move(ring);
  recording_ = most != 0;
  stacks_ = stacks;
  skip_ = skip;
  if (keep) return;
  // Numbers of stacks belong to one recording.
  for (auto& [address, segment] : segments_) {
    segment.stack = 0;
    for (Block* block = segment.first; block != nullptr; block = block->next) block->stack = 0;
  }
}

void Pool::note_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack, uint32_t home) {
  Lock lock(mutex_);
  if (ring_) push(Action::Oom, free, nbytes, queue, stack, home);
}

void Pool::note_look() {
  Lock lock(mutex_);
  if (ring_) push(Action::Look, 0, static_cast<uint64_t>(ledger_.read(kActiveBytes, kAll).current), 0, 0, 0);
}

void Pool::note_block(const Block* block, uint32_t stack) {
  Lock lock(mutex_);
  const Segment& segment = *block->segment;
  if (ring_) {
    push(Action::Annotate, block->address, block->requested, segment.queue, stack, segment.free_list->home->number);
  }
}

std::vector<Entry> Pool::history(uint64_t* lost) const {
  Lock lock(mutex_);
  std::vector<Entry> entries;
  *lost = ring_ ? ring_->lost() : 0;
  if (!ring_) return entries;
  entries.reserve(ring_->size());
  for (size_t age = 0; age < ring_->size(); ++age) entries.push_back((*ring_)[age]);
  return entries;
}

void Pool::push(Action action, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home) {
  if (skip_ >> static_cast<uint32_t>(action) & 1) return;
  ring_->push(Entry{now_ns(), address, nbytes, queue, stacks_ ? stack : 0, action, home, note_});
}

}  // namespace forebay
