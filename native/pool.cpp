#include "pool.hpp"

#include <time.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

namespace penstock {
namespace {

using Lock = std::lock_guard<std::mutex>;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

int64_t bytes(uint64_t size) { return static_cast<int64_t>(size); }

[[noreturn]] void refuse_segment(uint64_t address, uint64_t size, const std::string& why) {
  std::ostringstream message;
  message << "a segment at 0x" << std::hex << address << " of " << std::dec << size << " bytes " << why;
  throw std::invalid_argument(message.str());
}

}  // namespace

Block* Pool::take(uint64_t nbytes, uint64_t queue, uint32_t stack) {
  if (nbytes == 0 || nbytes >= kMost) return nullptr;
  const uint64_t size = block_size(nbytes);
  const bool small = is_small(size);
  Lock lock(mutex_);
  FreeList* list = free_list(queue, small);
  Block* block = list->best_fit(size);
  if (block == nullptr) return nullptr;
  // All that may fail comes before anything is changed.
  Block* const spare = worth_splitting(small, block->size - size) ? new_block() : nullptr;
  live_.make_room();
  list->erase(block);

  const bool was_split = block->split();
  if (Block* const rest = spare) {
    rest->address = block->address + size;
    rest->size = block->size - size;
    rest->requested = block->requested;  // a free block still shows what was asked for last, as PyTorch's do
    rest->segment = block->segment;
    rest->untouched = block->untouched;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->prev = rest;
    block->next = rest;
    block->size = size;
    list->insert(rest);
    if (was_split) {
      ledger_.add(kInactiveSplitBytes, small, -bytes(size));
    } else {
      ledger_.add(kInactiveSplit, small, 1);
      ledger_.add(kInactiveSplitBytes, small, bytes(rest->size));
    }
  } else if (was_split) {
    ledger_.add(kInactiveSplit, small, -1);
    ledger_.add(kInactiveSplitBytes, small, -bytes(block->size));
  }

  block->state = State::Live;
  block->requested = nbytes;
  block->stack = stack;
  live_.insert(block);
  ledger_.add(kAllocation, small, 1);
  ledger_.add(kAllocatedBytes, small, bytes(block->size));
  ledger_.add(kActive, small, 1);
  ledger_.add(kActiveBytes, small, bytes(block->size));
  ledger_.add(kRequestedBytes, small, bytes(nbytes));
  if (ring_) push(Action::Take, block->address, nbytes, queue, stack);
  return block;
}

bool Pool::give(Block* block) {
  Lock lock(mutex_);
  const Segment& segment = *block->segment;
  const bool waits = !block->uses.empty();
  if (waits) {  // what may fail comes first
    deferred_.push_back(serials_ + 1);
    awaiting_.emplace(block->serial = ++serials_, block);
    block->state = State::Awaiting;
  }
  live_.erase(block);
  ledger_.add(kAllocation, segment.small, -1);
  ledger_.add(kAllocatedBytes, segment.small, -bytes(block->size));
  if (ring_) push(Action::Give, block->address, block->requested, segment.queue, block->stack);
  if (!waits) reclaim(block);
  return waits;
}

void Pool::use(Block* block, uint64_t queue) {
  Lock lock(mutex_);
  auto& uses = block->uses;
  if (queue != block->segment->queue && std::find(uses.begin(), uses.end(), queue) == uses.end()) uses.push_back(queue);
}

bool Pool::resize(Block* block, uint64_t nbytes, uint32_t stack) {
  Lock lock(mutex_);
  const Segment& segment = *block->segment;
  if (nbytes == 0 || nbytes > block->size || worth_splitting(segment.small, block->size - block_size(nbytes)))
    return false;
  if (ring_) {
    push(Action::Give, block->address, block->requested, segment.queue, block->stack);
    push(Action::Given, block->address, block->requested, segment.queue, block->stack);
    push(Action::Take, block->address, nbytes, segment.queue, stack);
  }
  for (const int64_t way : {-1, 1}) {  // as the history says: given back, taken anew
    ledger_.add(kAllocation, segment.small, way);
    ledger_.add(kAllocatedBytes, segment.small, way * bytes(block->size));
    ledger_.add(kActive, segment.small, way);
    ledger_.add(kActiveBytes, segment.small, way * bytes(block->size));
    ledger_.add(kRequestedBytes, segment.small, way * bytes(way < 0 ? block->requested : nbytes));
  }
  block->requested = nbytes;
  block->stack = stack;
  return true;
}

Block* Pool::live_at(uint64_t address) const {
  if (address % kQuantum != 0) return nullptr;  // somebody else's, as a rule: seen without the table
  Lock lock(mutex_);
  return live_.find(address);
}

std::vector<std::pair<uint64_t, std::vector<uint64_t>>> Pool::deferred() {
  Lock lock(mutex_);
  std::vector<std::pair<uint64_t, std::vector<uint64_t>>> found;
  for (const uint64_t serial : deferred_) {
    const auto at = awaiting_.find(serial);
    if (at != awaiting_.end()) found.emplace_back(serial, at->second->uses);
  }
  deferred_.clear();
  return found;
}

bool Pool::settle(uint64_t serial) {
  Lock lock(mutex_);
  const auto at = awaiting_.find(serial);
  if (at == awaiting_.end()) return false;
  Block* block = at->second;
  awaiting_.erase(at);
  block->uses.clear();
  reclaim(block);
  return true;
}

// The block is free: joins it with free neighbours and lists what comes of it.
void Pool::reclaim(Block* block) {
  const Segment& segment = *block->segment;
  const bool small = segment.small;
  if (ring_) push(Action::Given, block->address, block->requested, segment.queue, block->stack);
  const int64_t given = bytes(block->size);
  ledger_.add(kActive, small, -1);
  ledger_.add(kActiveBytes, small, -given);
  ledger_.add(kRequestedBytes, small, -bytes(block->requested));
  block->state = State::Free;
  block->untouched = false;
  block->stack = 0;

  int64_t pieces = 0, piece_bytes = 0;
  for (Block* neighbour : {block->prev, block->next}) {
    if (neighbour == nullptr || neighbour->state != State::Free) continue;
    pieces -= 1;
    piece_bytes -= bytes(neighbour->size);
    segment.free_list->erase(neighbour);
    merge(block, neighbour);
  }
  if (block->split()) {
    pieces += 1;
    piece_bytes += bytes(block->size);
  }
  ledger_.add(kInactiveSplit, small, pieces);
  ledger_.add(kInactiveSplitBytes, small, piece_bytes);
  segment.free_list->insert(block);
}

void Pool::merge(Block* into, Block* gone) {
  if (gone == into->prev) {
    into->address = gone->address;
    into->prev = gone->prev;
    if (into->prev != nullptr) into->prev->next = into;
    if (into->segment->first == gone) into->segment->first = into;
  } else {
    into->next = gone->next;
    if (into->next != nullptr) into->next->prev = into;
  }
  into->size += gone->size;
  drop(gone);
}

void Pool::adopt(uint64_t address, uint64_t size, uint64_t queue, bool small, uint32_t stack, uint64_t rank) {
  if (address == 0 || address % kQuantum || size == 0 || size % kQuantum || address + size < address)
    refuse_segment(address, size, "cannot be: both are multiples of " + std::to_string(kQuantum));
  Lock lock(mutex_);
  if (overlaps(address, size)) refuse_segment(address, size, "would overlap another");
  FreeList* list = free_list(queue, small);
  Block* block = new_block();
  if (rank == kArrival) rank = adopted_;
  ++adopted_;
  Segment& segment = segments_[address] = Segment{address, size, queue, rank, small, stack, list, block};
  block->address = address;
  block->size = size;
  block->requested = 0;
  block->segment = &segment;
  block->untouched = true;
  list->insert(block);
  ledger_.add(kSegment, small, 1);
  ledger_.add(kReservedBytes, small, bytes(size));
  if (ring_) push(Action::Reserve, address, size, queue, stack);
}

bool Pool::evict(uint64_t address) {
  Lock lock(mutex_);
  const auto at = segments_.find(address);
  if (at == segments_.end()) return false;
  Segment& segment = at->second;
  if (segment.first->split() || segment.first->state != State::Free) return false;
  segment.free_list->erase(segment.first);
  drop(segment.first);
  ledger_.add(kSegment, segment.small, -1);
  ledger_.add(kReservedBytes, segment.small, -bytes(segment.size));
  if (ring_) push(Action::Release, address, segment.size, segment.queue, segment.stack);
  segments_.erase(at);
  return true;
}

std::vector<std::pair<uint64_t, uint64_t>> Pool::evictable() const {
  Lock lock(mutex_);
  std::vector<std::pair<uint64_t, uint64_t>> found;
  for (const bool small : {false, true}) {  // PyTorch frees the large ones first
    for (const auto& [address, segment] : segments_) {
      const Block& first = *segment.first;
      if (segment.small == small && !first.split() && first.state == State::Free)
        found.emplace_back(address, segment.size);
    }
  }
  return found;
}

bool Pool::owns(uint64_t address) const {
  Lock lock(mutex_);
  return overlaps(address, 1);
}

bool Pool::overlaps(uint64_t address, uint64_t size) const {
  auto after = segments_.lower_bound(address);
  if (after != segments_.end() && after->first - address < size) return true;
  return after != segments_.begin() && address - (--after)->first < after->second.size;
}

uint64_t Pool::largest_free() const {
  Lock lock(mutex_);
  uint64_t most = 0;
  for (const FreeLists& lists : free_lists_) {
    for (const auto& [queue, list] : lists) {
      if (const Block* block = list->largest()) most = std::max(most, block->size);
    }
  }
  return most;
}

uint64_t Pool::largest_free(uint64_t queue) const {
  return std::max(largest_free(queue, false), largest_free(queue, true));
}

uint64_t Pool::largest_free(uint64_t queue, bool small) const {
  Lock lock(mutex_);
  const FreeLists& lists = free_lists_[small ? 1 : 0];
  const auto at = lists.find(queue);
  const Block* block = at == lists.end() ? nullptr : at->second->largest();
  return block == nullptr ? 0 : block->size;
}

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

void Pool::reset_peaks() {
  Lock lock(mutex_);
  ledger_.reset_peaks();
}

void Pool::reset_accumulated() {
  Lock lock(mutex_);
  ledger_.reset_accumulated();
}

void Pool::record(size_t most) {
  Lock lock(mutex_);
  ring_ = most == 0 ? nullptr : std::make_unique<Ring>(most);
  recording_ = most != 0;
  // Numbers of stacks belong to one recording.
  for (auto& [address, segment] : segments_) {
    segment.stack = 0;
    for (Block* block = segment.first; block != nullptr; block = block->next) block->stack = 0;
  }
}

void Pool::note_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack) {
  Lock lock(mutex_);
  if (ring_) push(Action::Oom, free, nbytes, queue, stack);
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

void Pool::push(Action action, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack) {
  ring_->push(Entry{now_ns(), address, nbytes, queue, stack, action});
}

FreeList* Pool::free_list(uint64_t queue, bool small) {
  auto& list = free_lists_[small ? 1 : 0][queue];
  if (!list) list = std::make_unique<FreeList>();
  return list.get();
}

Block* Pool::new_block() {
  if (spare_ == nullptr) return &records_.emplace_back();
  Block* block = spare_;
  spare_ = block->next;
  block->prev = block->next = nullptr;
  block->stack = 0;
  block->state = State::Free;
  return block;
}

void Pool::drop(Block* block) {
  block->segment = nullptr;
  block->next = spare_;
  spare_ = block;
}

}  // namespace penstock
