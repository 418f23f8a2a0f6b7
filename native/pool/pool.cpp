#include "pool/pool.hpp"

#include <algorithm>

namespace forebay {
namespace {

using Lock = std::lock_guard<std::mutex>;

int64_t bytes(uint64_t size) { return static_cast<int64_t>(size); }

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

Block* Pool::take(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home_number, bool borrowed) {
  if (nbytes == 0 || nbytes >= kMost) return nullptr;
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  if (home == nullptr) return nullptr;
  const uint64_t size = policy_.block_size(nbytes);
  FreeList* list = free_list(home, queue, is_small(size));
  const bool growing = policy_.growing && !borrowed;
  Block* block = plain_ ? list->best_fit(size) : fitting(list, size, growing);
  return block == nullptr ? nullptr : hand_out(block, size, nbytes, stack, growing);
}

// PyTorch's choice (torch-semantics 3.4): it looks at one candidate, and at no second one when that may not be had.
Block* Pool::fitting(FreeList* list, uint64_t size, bool growing) {
  if (policy_.heaps) return buffer(list, size);
  if (policy_.ages) ++list->home->clock[list->small ? 1 : 0];
  Block* block = list->best_fit(size);
  if (growing) {  // of those in growing segments the one with the least room behind it
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
Block* Pool::hand_out(Block* block, uint64_t size, uint64_t nbytes, uint32_t stack, bool growing) {
  const Segment& segment = *block->segment;
  const bool small = segment.small, counted = segment.splits();
  // All that may fail comes before anything is changed.
  const bool splits =
      segment.free_list->home->splits && policy_.worth_splitting(small || growing, size, block->size - size);
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
  if (segment.free_list->home->waits) block->uses.push_back(segment.queue);
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
  const uint64_t size = nbytes == 0 ? 0 : policy_.block_size(nbytes);
  if (size == 0 || nbytes > block->size ||
      policy_.worth_splitting(segment.small || policy_.growing, size, block->size - size))
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
  if (address % kGrain != 0) return nullptr;  // somebody else's, as a rule: seen without the table
  Lock lock(mutex_);
  return live_.find(address);
}

std::vector<Deferred> Pool::deferred() {
  Lock lock(mutex_);
  const auto settled = [&](uint64_t serial) { return awaiting_.count(serial) == 0; };
  deferred_.erase(std::remove_if(deferred_.begin(), deferred_.end(), settled), deferred_.end());
  std::vector<Deferred> found;
  for (const uint64_t serial : deferred_) {
    const Block& block = *awaiting_.at(serial);
    found.push_back({serial, block.segment->free_list->home->number, block.uses});
  }
  return found;
}

void Pool::heard(uint64_t serial) {
  Lock lock(mutex_);
  deferred_.erase(deferred_.begin(), std::upper_bound(deferred_.begin(), deferred_.end(), serial));
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

  if (segment.heap()) return list(block);
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
  rest->rank = block->rank;
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

}  // namespace forebay
