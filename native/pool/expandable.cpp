// Expandable segments: address space that is reserved once and whose pages are committed and decommitted on demand.
// A range without memory is Uncommitted; a Committing or Decommitting range is in transition and cannot be allocated.
#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "pool/pool.hpp"

namespace forebay {
namespace {

bool is_free_or_uncommitted(const Block* block) {
  return block != nullptr && (block->state == State::Free || block->state == State::Uncommitted);
}

}  // namespace

void Pool::adopt_expandable(uint64_t address, uint64_t size, uint64_t page_size, uint64_t queue, bool small,
                            uint32_t pool_number) {
  if (page_size == 0 || page_size % kMinBlockSize != 0 || size % page_size != 0) {
    std::ostringstream message;
    message << "an expandable segment must consist of whole pages, and the page size must be a multiple of "
            << kMinBlockSize << ": " << size << " bytes, pages of " << page_size;
    throw std::invalid_argument(message.str());
  }
  PoolLock lock(mutex_);
  FreeList* list = free_list(partition_or_default(pool_number), queue, small);
  std::map<uint64_t, Block*> entry;  // allocated first, as it may throw
  Block*& listed = entry[address];
  listed = create_segment(address, size, queue, 0, kNextRank, list, page_size);
  listed->state = State::Uncommitted;
  list->uncommitted.merge(entry);
  ++expandable_segments_;
  best_fit_only_ = is_best_fit_only();
}

PageRange Pool::choose_pages(uint64_t nbytes, uint64_t queue, uint32_t pool_number) {
  PoolLock lock(mutex_);
  const uint64_t size = policy_.block_size(nbytes);
  FreeList* list = free_list(partition_or_default(pool_number), queue, is_small(size));
  for (const auto& entry : list->uncommitted) {
    Block* const uncommitted = entry.second;
    // A free block directly before the range is part of the new block.
    Block* const first = is_free_or_uncommitted(uncommitted->prev) ? uncommitted->prev : uncommitted;
    uint64_t space = 0;
    for (const Block* at = first; space < size && is_free_or_uncommitted(at); at = at->next) space += at->size;
    if (space < size) continue;
    const uint64_t committed = first == uncommitted ? 0 : first->size;
    if (committed >= size) return {first->address, 0};
    const uint64_t missing = round_up(size - committed, uncommitted->segment->page_size);
    if (missing < uncommitted->size) {
      ensure_spares(1);
      Block*& rest = list->uncommitted[uncommitted->address + missing];
      rest = split_off(uncommitted, missing);
    }
    uncommitted->state = State::Committing;
    list->uncommitted.erase(uncommitted->address);
    return {uncommitted->address, uncommitted->size};
  }
  return {};
}

bool Pool::begin_commit(PageRange range) {
  PoolLock lock(mutex_);
  Block* block = block_containing(range.address);
  if (block == nullptr || block->state != State::Uncommitted) return false;
  const uint64_t page_size = block->segment->page_size, before = range.address - block->address;
  if (range.size == 0 || range.size % page_size != 0) return false;
  if ((range.address - block->segment->address) % page_size != 0) return false;
  if (range.size > block->size - before) return false;
  ensure_spares(2);
  auto& uncommitted = block->segment->free_list->uncommitted;
  Block** after = range.size < block->size - before ? &uncommitted[range.address + range.size] : nullptr;
  if (before > 0) {
    block = split_off(block, before);
  } else {
    uncommitted.erase(block->address);
  }
  if (after != nullptr) *after = split_off(block, range.size);
  block->state = State::Committing;
  return true;
}

Block* Pool::allocate_at(uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t pool_number) {
  PoolLock lock(mutex_);
  Block* block = block_at(address);
  const uint64_t size = policy_.block_size(nbytes);
  if (block == nullptr) return nullptr;
  const Segment& segment = *block->segment;
  if (queue != kAnyQueue && (segment.queue != queue || segment.free_list->partition->pool_number != pool_number))
    return nullptr;
  if (block->state != State::Free || !fits(nbytes, block->size)) return nullptr;
  return allocate_from(block, size, nbytes, stack, policy_.expandable);
}

Block* Pool::commit_done(uint64_t address, uint64_t nbytes, uint32_t stack) {
  PoolLock lock(mutex_);
  Block* block = block_at(address);
  if (block == nullptr || block->state != State::Committing) return nullptr;
  Segment& segment = *block->segment;
  const uint64_t size = block->size;
  block->state = State::Free;
  block->untouched = true;
  coalesce_free(block);
  count_reserved(segment, static_cast<int64_t>(size));
  if (ring_) record_event(Action::Map, address, size, segment.queue, stack, segment.free_list->partition->pool_number);
  if (block->prev == nullptr && segment.stack == 0) segment.stack = stack;
  return fits(nbytes, block->size) ? allocate_from(block, policy_.block_size(nbytes), nbytes, stack, policy_.expandable)
                                   : nullptr;
}

std::vector<PageRange> Pool::idle_pages(bool small, uint32_t pool_number) const {
  PoolLock lock(mutex_);
  std::vector<PageRange> found;
  const PoolPartition* partition = find_partition(pool_number);
  if (partition == nullptr) return found;
  for (const auto& [queue, list] : partition->lists[small ? 1 : 0]) {
    for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) {
      if (!block->segment->expandable()) continue;
      const uint64_t start = block->segment->address, page_size = block->segment->page_size;
      const uint64_t begin = round_up(block->address - start, page_size);
      const uint64_t end = (block->address + block->size - start) / page_size * page_size;
      if (begin < end) found.push_back({start + begin, end - begin});
    }
  }
  return found;
}

bool Pool::begin_decommit(PageRange range) {
  PoolLock lock(mutex_);
  Block* block = block_containing(range.address);
  if (block == nullptr || block->state != State::Free || !block->segment->expandable()) return false;
  const uint64_t page_size = block->segment->page_size, before = range.address - block->address;
  if (range.size == 0 || range.size % page_size != 0) return false;
  if ((range.address - block->segment->address) % page_size != 0) return false;
  if (range.size > block->size - before) return false;
  ensure_spares(2);
  remove_free(block);
  if (before > 0) {
    // The range inherits the block's last requested size; the part before it starts anew.
    Block* rest = split_off(block, before);
    std::swap(rest->requested, block->requested);
    insert_free(block);
    block = rest;
  }
  if (range.size < block->size) insert_free(split_off(block, range.size));
  block->state = State::Decommitting;
  return true;
}

bool Pool::decommit_done(uint64_t address, uint32_t stack) {
  PoolLock lock(mutex_);
  Block* block = block_at(address);
  if (block == nullptr || block->state != State::Decommitting) return false;
  const Segment& segment = *block->segment;
  const uint64_t size = block->size;
  if (stack == 0 && block->prev == nullptr) stack = segment.stack;
  coalesce_uncommitted(block);
  count_reserved(segment, -static_cast<int64_t>(size));
  if (ring_)
    record_event(Action::Unmap, address, size, segment.queue, stack, segment.free_list->partition->pool_number);
  return !block->is_split();
}

void Pool::rollback(uint64_t address) {
  PoolLock lock(mutex_);
  Block* block = block_at(address);
  if (block == nullptr) return;
  if (block->state == State::Committing) {
    coalesce_uncommitted(block);
  } else if (block->state == State::Decommitting) {
    block->state = State::Free;
    coalesce_free(block);
  }
}

std::vector<PageTransition> Pool::page_transitions() const {
  PoolLock lock(mutex_);
  std::vector<PageTransition> found;
  for (const auto& [address, segment] : segments_) {
    if (!segment.expandable()) continue;
    for (const Block* block = segment.first; block != nullptr; block = block->next) {
      if (block->state == State::Committing || block->state == State::Decommitting)
        found.push_back({block->address, block->size, block->state == State::Decommitting});
    }
  }
  return found;
}

bool Pool::evict_expandable(uint64_t address) {
  PoolLock lock(mutex_);
  const auto at = segments_.find(address);
  if (at == segments_.end() || at->second.first->is_split() || at->second.first->state != State::Uncommitted)
    return false;
  at->second.free_list->uncommitted.erase(address);
  erase_segment(&at->second);
  --expandable_segments_;
  best_fit_only_ = is_best_fit_only();
  return true;
}

Block* Pool::block_containing(uint64_t address) {
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  const Segment& segment = std::prev(after)->second;
  const auto& uncommitted = segment.free_list->uncommitted;
  const auto right = uncommitted.upper_bound(address);
  const auto in_segment = [&](const Block* range) { return range->segment == &segment; };
  // Search from the uncommitted ranges on both sides: transitions happen next to them, and a segment may have a million
  // blocks.
  const bool has_left = right != uncommitted.begin() && in_segment(std::prev(right)->second);
  Block* front = has_left ? std::prev(right)->second : segment.first;
  Block* back = right != uncommitted.end() && in_segment(right->second) ? right->second : nullptr;
  while (front != nullptr && front->address + front->size <= address) {
    front = front->next;
    if (back == nullptr) continue;
    back = back->prev;
    if (back->address <= address) return back;
  }
  return front;
}

Block* Pool::block_at(uint64_t address) {
  Block* block = block_containing(address);
  return block == nullptr || block->address != address ? nullptr : block;
}

void Pool::coalesce_free(Block* block) {
  for (Block* neighbour : {block->prev, block->next}) {
    if (neighbour == nullptr || neighbour->state != State::Free) continue;
    block->untouched = block->untouched && neighbour->untouched;
    remove_free(neighbour);
    absorb(block, neighbour);
  }
  insert_free(block);
}

void Pool::coalesce_uncommitted(Block* block) {
  auto& uncommitted = block->segment->free_list->uncommitted;
  const auto is_uncommitted = [](const Block* other) { return other != nullptr && other->state == State::Uncommitted; };
  // First, as it may throw.
  uncommitted[is_uncommitted(block->prev) ? block->prev->address : block->address] = block;
  if (is_uncommitted(block->prev)) absorb(block, block->prev);
  if (is_uncommitted(block->next)) {
    uncommitted.erase(block->next->address);
    absorb(block, block->next);
  }
  block->state = State::Uncommitted;
}

}  // namespace forebay
