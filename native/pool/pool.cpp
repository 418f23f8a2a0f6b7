// Allocation and freeing of blocks.
#include "pool/pool.hpp"

#include <algorithm>

namespace forebay {
namespace {

int64_t bytes(uint64_t size) { return static_cast<int64_t>(size); }

}  // namespace

void Pool::set_policy(const Policy& policy) {
  PoolLock lock(mutex_);
  policy_ = policy;
  best_fit_only_ = is_best_fit_only();
}

Policy Pool::policy() const {
  PoolLock lock(mutex_);
  return policy_;
}

Block* Pool::try_allocate(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t pool_number, bool borrowed) {
  if (nbytes == 0 || nbytes >= kMaxRequest) return nullptr;
  PoolLock lock(mutex_);
  PoolPartition* partition = find_partition(pool_number);
  if (partition == nullptr) return nullptr;
  const uint64_t size = policy_.block_size(nbytes);
  FreeList* list = free_list(partition, queue, is_small(size));
  const bool expandable = policy_.expandable && !borrowed;
  Block* block = best_fit_only_ ? list->best_fit(size) : find_block(list, size, expandable);
  return block == nullptr ? nullptr : allocate_from(block, size, nbytes, stack, expandable);
}

// PyTorch's rule: if the best-fitting candidate is not permitted, no second one is tried.
Block* Pool::find_block(FreeList* list, uint64_t size, bool expandable) {
  if (policy_.heaps) return find_buffer(list, size);
  if (policy_.track_age) ++list->partition->clock[list->small ? 1 : 0];
  Block* block = list->best_fit(size);
  if (expandable) {  // among blocks of expandable segments, the one that could grow the least
    const auto size_when_grown = [](const Block* b) {
      return b->size + (b->next != nullptr && b->next->state == State::Uncommitted ? b->next->size : 0);
    };
    while (block != nullptr && block->segment->expandable()) {
      Block* next = list->next(block);
      if (next == nullptr || size_when_grown(next) >= size_when_grown(block)) break;
      block = next;
    }
  } else {
    while (block != nullptr && block->segment->expandable()) block = list->next(block);
  }
  if (block == nullptr) return nullptr;
  if (size < policy_.max_split) return block->size >= policy_.max_split ? nullptr : block;
  return block->size - size >= policy_.max_non_split_rounding ? nullptr : block;
}

// Marks the first `size` bytes of a listed block as live; with `exact`, not more than these.
Block* Pool::allocate_from(Block* block, uint64_t size, uint64_t nbytes, uint32_t stack, bool expandable, bool exact) {
  Segment& segment = *block->segment;
  const bool small = segment.small, counted = segment.counts_splits();
  // Allocations of our own tables may fail, so they come before any change.
  const bool split = exact ? block->size > size
                           : segment.free_list->partition->allows_splits &&
                                 policy_.should_split(small || expandable, size, block->size - size);
  if (split && spare_records_ == nullptr) ensure_spares(1);
  live_.reserve_slots(1);
  remove_free(block);

  const bool was_split = block->is_split();
  if (split) {
    if (block->prev == nullptr) segment.stack = 0;  // as in PyTorch, where a split segment has no stack any more
    Block* rest = split_off(block, size);
    rest->requested = block->requested;  // a free block keeps its last requested size, as in PyTorch
    insert_free(rest);
    if (counted && !was_split) statistics_.add(kInactiveSplit, small, 1);
    if (counted) statistics_.add(kInactiveSplitBytes, small, was_split ? -bytes(size) : bytes(rest->size));
  } else if (was_split && counted) {
    statistics_.add(kInactiveSplit, small, -1);
    statistics_.add(kInactiveSplitBytes, small, -bytes(block->size));
  }

  block->state = State::Live;
  block->requested = nbytes;
  block->stack = stack;
  block->owner = nullptr;
  live_.insert(block);
  statistics_.add(kAllocation, small, 1);
  statistics_.add(kAllocatedBytes, small, bytes(block->size));
  statistics_.add(kActive, small, 1);
  statistics_.add(kActiveBytes, small, bytes(block->size));
  statistics_.add(kRequestedBytes, small, bytes(nbytes));
  if (block->size >= policy_.max_split) oversize_blocks_.add(small, 1);
  if (ring_)
    record_event(Action::Alloc, block->address, nbytes, segment.queue, stack,
                 segment.free_list->partition->pool_number);
  return block;
}

// Flattened: a free of a program is one call.
[[gnu::flatten]] bool Pool::free(Block* block, uint32_t stack) {
  PoolLock lock(mutex_);
  return begin_free(block, stack);
}

bool Pool::begin_free(Block* block, uint32_t stack) {
  const Segment& segment = *block->segment;
  const bool waits = segment.free_list->partition->defers_frees;
  const bool pending = waits || !block->users.empty();
  if (pending) {  // first, as it may throw
    const uint64_t serial = last_serial_ + 1;
    const auto added = pending_frees_.emplace(serial, block).first;
    const size_t count = deferred_.size();
    try {
      deferred_.push_back(serial);
      if (waits) block->users.push_back(segment.queue);
    } catch (...) {
      deferred_.resize(count);
      pending_frees_.erase(added);
      throw;
    }
    block->serial = last_serial_ = serial;
    block->state = State::PendingFree;
  }
  live_.erase(block);
  statistics_.add(kAllocation, segment.small, -1);
  statistics_.add(kAllocatedBytes, segment.small, -bytes(block->size));
  if (block->size >= policy_.max_split) oversize_blocks_.add(segment.small, -1);
  if (ring_) {
    if (stack != 0) block->stack = stack;
    record_event(Action::FreeRequested, block->address, block->requested, segment.queue, block->stack,
                 segment.free_list->partition->pool_number);
  }
  if (!pending) finish_free(block, 0);
  return pending;
}

void Pool::record_stream(Block* block, uint64_t queue) {
  PoolLock lock(mutex_);
  auto& users = block->users;
  if (queue != block->segment->queue && std::find(users.begin(), users.end(), queue) == users.end())
    users.push_back(queue);
}

bool Pool::resize(Block* block, uint64_t nbytes, uint32_t stack) {
  PoolLock lock(mutex_);
  const Segment& segment = *block->segment;
  const uint64_t size = nbytes == 0 ? 0 : policy_.block_size(nbytes);
  if (size == 0 || nbytes > block->size ||
      policy_.should_split(segment.small || policy_.expandable, size, block->size - size))
    return false;
  if (ring_) {
    const uint32_t pool_number = segment.free_list->partition->pool_number;
    record_event(Action::FreeRequested, block->address, block->requested, segment.queue, block->stack, pool_number);
    record_event(Action::FreeCompleted, block->address, block->requested, segment.queue, block->stack, pool_number);
    record_event(Action::Alloc, block->address, nbytes, segment.queue, stack, pool_number);
  }
  for (const int64_t sign : {-1, 1}) {  // as in the history: freed, then allocated again
    statistics_.add(kAllocation, segment.small, sign);
    statistics_.add(kAllocatedBytes, segment.small, sign * bytes(block->size));
    statistics_.add(kActive, segment.small, sign);
    statistics_.add(kActiveBytes, segment.small, sign * bytes(block->size));
    statistics_.add(kRequestedBytes, segment.small, sign * bytes(sign < 0 ? block->requested : nbytes));
  }
  block->requested = nbytes;
  block->stack = stack;
  return true;
}

Block* Pool::live_at(uint64_t address) const {
  if (address % kMinAlignment != 0) return nullptr;  // usually memory of another allocator: decided without the lock
  PoolLock lock(mutex_);
  return live_.find(address);
}

std::vector<DeferredFree> Pool::deferred() {
  PoolLock lock(mutex_);
  const auto completed = [&](uint64_t serial) { return pending_frees_.count(serial) == 0; };
  deferred_.erase(std::remove_if(deferred_.begin(), deferred_.end(), completed), deferred_.end());
  std::vector<DeferredFree> found;
  for (const uint64_t serial : deferred_) {
    const Block& block = *pending_frees_.at(serial);
    found.push_back({serial, block.segment->free_list->partition->pool_number, block.users, block.segment->queue});
  }
  return found;
}

void Pool::acknowledge_deferred(uint64_t serial) {
  PoolLock lock(mutex_);
  deferred_.erase(deferred_.begin(), std::upper_bound(deferred_.begin(), deferred_.end(), serial));
}

bool Pool::complete_free(uint64_t serial, uint32_t stack) {
  PoolLock lock(mutex_);
  const auto at = pending_frees_.find(serial);
  if (at == pending_frees_.end()) return false;
  Block* block = at->second;
  pending_frees_.erase(at);
  block->users.clear();
  finish_free(block, stack);
  return true;
}

// Frees the block: merges it with free neighbours and lists the result.
void Pool::finish_free(Block* block, uint32_t stack) {
  const Segment& segment = *block->segment;
  const bool small = segment.small;
  if (ring_) {
    const uint32_t pool_number = segment.free_list->partition->pool_number;
    record_event(Action::FreeCompleted, block->address, block->requested, segment.queue,
                 stack == 0 ? block->stack : stack, pool_number);
  }
  const int64_t freed = bytes(block->size);
  statistics_.add(kActive, small, -1);
  statistics_.add(kActiveBytes, small, -freed);
  statistics_.add(kRequestedBytes, small, -bytes(block->requested));
  block->state = State::Free;
  block->untouched = false;
  block->stack = 0;

  if (segment.is_heap()) return insert_free(block);
  int64_t pieces = 0, piece_bytes = 0;
  for (Block* neighbour : {block->prev, block->next}) {
    if (neighbour == nullptr || neighbour->state != State::Free) continue;
    pieces -= 1;
    piece_bytes -= bytes(neighbour->size);
    remove_free(neighbour);
    absorb(block, neighbour);
  }
  if (block->is_split()) {
    pieces += 1;
    piece_bytes += bytes(block->size);
  }
  if (!segment.expandable()) {
    statistics_.add(kInactiveSplit, small, pieces);
    statistics_.add(kInactiveSplitBytes, small, piece_bytes);
  }
  insert_free(block);
}

void Pool::absorb(Block* into, Block* neighbour) {
  if (neighbour == into->prev) {
    into->address = neighbour->address;
    into->prev = neighbour->prev;
    if (into->prev != nullptr) into->prev->next = into;
    if (into->segment->first == neighbour) into->segment->first = into;
  } else {
    into->next = neighbour->next;
    if (into->next != nullptr) into->next->prev = into;
  }
  into->size += neighbour->size;
  recycle(neighbour);
}

PoolPartition* Pool::find_partition(uint32_t pool_number) {
  return const_cast<PoolPartition*>(std::as_const(*this).find_partition(pool_number));
}

const PoolPartition* Pool::find_partition(uint32_t pool_number) const {
  if (pool_number == 0) return &default_partition_;
  const auto at = partitions_.find(pool_number);
  return at == partitions_.end() ? nullptr : at->second.get();
}

PoolPartition* Pool::partition_or_default(uint32_t pool_number) {
  PoolPartition* partition = find_partition(pool_number);
  return partition == nullptr ? &default_partition_ : partition;
}

FreeList* Pool::free_list(PoolPartition* partition, uint64_t queue, bool small) {
  auto& lists = partition->lists[small ? 1 : 0];
  const auto found = lists.find(queue);
  if (found != lists.end()) return found->second.get();
  return lists.emplace(queue, std::make_unique<FreeList>(partition, small)).first->second.get();
}

void Pool::insert_free(Block* block) {
  FreeList* list = block->segment->free_list;
  block->freed_at = list->partition->clock[list->small ? 1 : 0];
  list->insert(block);
}

void Pool::remove_free(Block* block) { block->segment->free_list->erase(block); }

Block* Pool::new_record() {
  if (spare_records_ == nullptr) return &records_.emplace_back();
  Block* block = spare_records_;
  spare_records_ = block->next;
  block->prev = block->next = nullptr;
  block->requested = 0;
  block->stack = 0;
  block->state = State::Free;
  return block;
}

void Pool::ensure_spares(int count) {
  for (const Block* spare = spare_records_; spare != nullptr && count > 0; spare = spare->next) --count;
  for (; count > 0; --count) recycle(&records_.emplace_back());
}

Block* Pool::split_off(Block* block, uint64_t size) {
  Block* rest = new_record();
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

void Pool::recycle(Block* block) {
  block->segment = nullptr;
  block->next = spare_records_;
  spare_records_ = block;
}

}  // namespace forebay
