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

void Pool::set_policy(const Policy& policy) {
  Lock lock(mutex_);
  policy_ = policy;
  plain_ = plain();
}

Policy Pool::policy() const {
  Lock lock(mutex_);
  return policy_;
}

Block* Pool::take(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home_number) {
  if (nbytes == 0 || nbytes >= kMost) return nullptr;
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  if (home == nullptr) return nullptr;
  const uint64_t size = policy_.block_size(nbytes);
  FreeList* list = free_list(home, queue, is_small(size));
  Block* block = plain_ ? list->best_fit(size) : fitting(list, size);
  return block == nullptr ? nullptr : hand_out(block, size, nbytes, stack);
}

// PyTorch's choice (torch-semantics 3.4): it looks at one candidate, and at no second one when that may not be had.
Block* Pool::fitting(FreeList* list, uint64_t size) {
  if (policy_.ages) ++list->home->clock[list->small ? 1 : 0];
  Block* block = list->best_fit(size);
  if (policy_.growing) {  // of those in growing segments the one with the least room behind it
    const auto room = [](const Block* b) {
      return b->size + (b->next != nullptr && b->next->state == State::Bare ? b->next->size : 0);
    };
    while (block != nullptr && block->segment->growing()) {
      Block* next = list->next(block);
      if (next == nullptr || room(next) >= room(block)) break;
      block = next;
    }
  } else {
    while (block != nullptr && block->segment->growing()) block = list->next(block);
  }
  if (block == nullptr) return nullptr;
  if (size < policy_.max_split) return block->size >= policy_.max_split ? nullptr : block;
  return block->size - size >= policy_.max_non_split_rounding ? nullptr : block;
}

// The first `size` bytes of a listed block are live from now on.
Block* Pool::hand_out(Block* block, uint64_t size, uint64_t nbytes, uint32_t stack) {
  const Segment& segment = *block->segment;
  const bool small = segment.small, counted = !segment.growing();
  // All that may fail comes before anything is changed.
  const bool splits = segment.free_list->home->splits && policy_.worth_splitting(small, size, block->size - size);
  if (splits) have_spares(1);
  live_.make_room();
  unlist(block);

  const bool was_split = block->split();
  if (splits) {
    Block* rest = cut(block, size);
    rest->requested = block->requested;  // a free block still shows what was asked for last, as PyTorch's do
    list(rest);
    if (counted && !was_split) ledger_.add(kInactiveSplit, small, 1);
    if (counted) ledger_.add(kInactiveSplitBytes, small, was_split ? -bytes(size) : bytes(rest->size));
  } else if (was_split && counted) {
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
  if (block->size >= policy_.max_split) oversize_blocks_.add(small, 1);
  if (ring_) push(Action::Take, block->address, nbytes, segment.queue, stack, segment.free_list->home->number);
  return block;
}

bool Pool::give(Block* block, uint32_t stack) {
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
  if (block->size >= policy_.max_split) oversize_blocks_.add(segment.small, -1);
  if (ring_) {
    if (stack != 0) block->stack = stack;
    push(Action::Give, block->address, block->requested, segment.queue, block->stack, segment.free_list->home->number);
  }
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
  if (nbytes == 0 || nbytes > block->size ||
      policy_.worth_splitting(segment.small, policy_.block_size(nbytes), block->size - policy_.block_size(nbytes)))
    return false;
  if (ring_) {
    const uint32_t home = segment.free_list->home->number;
    push(Action::Give, block->address, block->requested, segment.queue, block->stack, home);
    push(Action::Given, block->address, block->requested, segment.queue, block->stack, home);
    push(Action::Take, block->address, nbytes, segment.queue, stack, home);
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

std::vector<Deferred> Pool::deferred() {
  Lock lock(mutex_);
  std::vector<Deferred> found;
  for (const uint64_t serial : deferred_) {
    const auto at = awaiting_.find(serial);
    if (at == awaiting_.end()) continue;
    const Block& block = *at->second;
    found.push_back({serial, block.segment->free_list->home->number, block.uses});
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
  if (ring_) {
    const uint32_t home = segment.free_list->home->number;
    push(Action::Given, block->address, block->requested, segment.queue, block->stack, home);
  }
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
    unlist(neighbour);
    merge(block, neighbour);
  }
  if (block->split()) {
    pieces += 1;
    piece_bytes += bytes(block->size);
  }
  if (!segment.growing()) {
    ledger_.add(kInactiveSplit, small, pieces);
    ledger_.add(kInactiveSplitBytes, small, piece_bytes);
  }
  list(block);
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

Block* Pool::install(uint64_t address, uint64_t size, uint64_t queue, uint32_t stack, uint64_t rank, FreeList* list,
                     uint64_t page) {
  if (address == 0 || address % kQuantum || size == 0 || size % kQuantum || address + size < address)
    refuse_segment(address, size, "cannot be: both are multiples of " + std::to_string(kQuantum));
  if (overlaps(address, size)) refuse_segment(address, size, "would overlap another");
  Block* block = new_block();
  if (rank == kArrival) rank = adopted_;
  ++adopted_;
  Segment& segment = segments_[address];
  segment = Segment{address, size, queue, rank, list->small, page, stack, list, block};
  block->address = address;
  block->size = size;
  block->segment = &segment;
  block->untouched = true;
  return block;
}

// Counts memory that came (or went).
void Pool::reserve(const Segment& segment, int64_t change) {
  ledger_.add(kReservedBytes, segment.small, change);
  segment.free_list->home->reserved.add(segment.small, change);
  if (!segment.growing()) {
    ledger_.add(kSegment, segment.small, change > 0 ? 1 : -1);
    if (segment.size >= policy_.max_split) oversize_segments_.add(segment.small, change > 0 ? 1 : -1);
  }
}

void Pool::adopt(uint64_t address, uint64_t size, uint64_t queue, bool small, uint32_t stack, uint64_t rank,
                 uint32_t home_number) {
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  Block* block =
      install(address, size, queue, stack, rank, free_list(home == nullptr ? &common_ : home, queue, small), 0);
  list(block);
  reserve(*block->segment, bytes(size));
  if (ring_) push(Action::Reserve, address, size, queue, stack, home_number);
}

Block* Pool::adopt_for(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue, uint32_t stack,
                       uint32_t home_number) {
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  const uint64_t wanted = policy_.block_size(nbytes);
  FreeList* where = free_list(home == nullptr ? &common_ : home, queue, is_small(wanted));
  Block* block = install(address, size, queue, stack, kArrival, where, 0);
  list(block);
  reserve(*block->segment, bytes(size));
  if (ring_) push(Action::Reserve, address, size, queue, stack, home_number);
  return may_serve(nbytes, size) ? hand_out(block, wanted, nbytes, stack) : nullptr;
}

bool Pool::evict(uint64_t address) {
  Lock lock(mutex_);
  const auto at = segments_.find(address);
  if (at == segments_.end()) return false;
  Segment& segment = at->second;
  if (segment.growing() || segment.first->split() || segment.first->state != State::Free) return false;
  unlist(segment.first);
  reserve(segment, -bytes(segment.size));
  if (ring_) {
    const uint32_t home = segment.free_list->home->number;
    push(Action::Release, address, segment.size, segment.queue, segment.stack, home);
  }
  forget(&segment);
  return true;
}

void Pool::forget(Segment* segment) {
  drop(segment->first);
  segments_.erase(segment->address);
}

std::vector<Evictable> Pool::evictable(bool small, uint32_t home_number, bool growing) const {
  Lock lock(mutex_);
  std::vector<Evictable> found;
  const Home* home = home_of(home_number);
  if (home == nullptr) return found;
  for (const auto& [queue, list] : home->lists[small ? 1 : 0]) {
    for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) {
      const bool grows = block->segment->growing();
      if (!block->split() && (growing || !grows))
        found.push_back({block->address, block->size, queue, home->clock[small ? 1 : 0] - block->born, grows});
    }
  }
  return found;
}

void Pool::make_home(uint32_t number, bool splits) {
  Lock lock(mutex_);
  auto& home = homes_[number];
  if (home == nullptr) home = std::make_unique<Home>();
  home->number = number;
  home->splits = splits;
}

bool Pool::drop_home(uint32_t number) {
  Lock lock(mutex_);
  const auto at = homes_.find(number);
  if (at == homes_.end()) return false;
  for (const auto& [address, segment] : segments_) {
    if (segment.free_list->home == at->second.get()) return false;
  }
  for (auto& lists : at->second->lists) lists.clear();
  return true;
}

uint64_t Pool::idle_in(uint32_t number) const {
  Lock lock(mutex_);
  uint64_t idle = 0;
  if (const Home* home = home_of(number)) {
    for (const auto& lists : home->lists) {
      for (const auto& [queue, list] : lists) {
        for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) idle += block->size;
      }
    }
  }
  return idle;
}

Count Pool::reserved_by(uint32_t number, Kind kind) const {
  Lock lock(mutex_);
  const Home* home = home_of(number);
  return home == nullptr ? Count{} : home->reserved.read(kind);
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
  const auto look = [&](const Home& home) {
    for (const auto& lists : home.lists) {
      for (const auto& [queue, list] : lists) {
        if (const Block* block = list->largest()) most = std::max(most, block->size);
      }
    }
  };
  look(common_);
  for (const auto& [number, home] : homes_) look(*home);
  return most;
}

uint64_t Pool::largest_free(uint64_t queue) const {
  return std::max(largest_free(queue, false), largest_free(queue, true));
}

uint64_t Pool::largest_free(uint64_t queue, bool small) const {
  Lock lock(mutex_);
  const auto& lists = common_.lists[small ? 1 : 0];
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

void Pool::record(size_t most, bool stacks, uint32_t skip, bool keep) {
  Lock lock(mutex_);
  auto ring = most == 0 ? nullptr : std::make_unique<Ring>(most);
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

Home* Pool::home_of(uint32_t number) { return const_cast<Home*>(std::as_const(*this).home_of(number)); }

const Home* Pool::home_of(uint32_t number) const {
  if (number == 0) return &common_;
  const auto at = homes_.find(number);
  return at == homes_.end() ? nullptr : at->second.get();
}

FreeList* Pool::free_list(Home* home, uint64_t queue, bool small) {
  auto& list = home->lists[small ? 1 : 0][queue];
  if (!list) list = std::make_unique<FreeList>(home, small);
  return list.get();
}

void Pool::list(Block* block) {
  FreeList* list = block->segment->free_list;
  block->born = list->home->clock[list->small ? 1 : 0];
  list->insert(block);
}

void Pool::unlist(Block* block) { block->segment->free_list->erase(block); }

Block* Pool::new_block() {
  if (spare_ == nullptr) return &records_.emplace_back();
  Block* block = spare_;
  spare_ = block->next;
  block->prev = block->next = nullptr;
  block->requested = 0;
  block->stack = 0;
  block->state = State::Free;
  return block;
}

void Pool::have_spares(int count) {
  for (const Block* spare = spare_; spare != nullptr && count > 0; spare = spare->next) --count;
  for (; count > 0; --count) drop(&records_.emplace_back());
}

Block* Pool::cut(Block* block, uint64_t size) {
  Block* rest = new_block();
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->state = block->state;
  rest->segment = block->segment;
  rest->untouched = block->untouched;
  rest->prev = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->prev = rest;
  block->next = rest;
  block->size = size;
  return rest;
}

void Pool::drop(Block* block) {
  block->segment = nullptr;
  block->next = spare_;
  spare_ = block;
}

}  // namespace penstock
