// Segments of a pool (adopt, evict) and the partitions they belong to.
#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "pool/pool.hpp"

namespace forebay {
namespace {

int64_t bytes(uint64_t size) { return static_cast<int64_t>(size); }

[[noreturn]] void throw_invalid_segment(uint64_t address, uint64_t size, const std::string& why) {
  std::ostringstream message;
  message << "a segment at 0x" << std::hex << address << " of " << std::dec << size << " bytes " << why;
  throw std::invalid_argument(message.str());
}

}  // namespace

Block* Pool::create_segment(uint64_t address, uint64_t size, uint64_t queue, uint32_t stack, uint64_t rank,
                            FreeList* list, uint64_t page_size) {
  if (address == 0 || address % kMinBlockSize || size == 0 || size % kMinBlockSize || address + size < address ||
      size >= kMaxRequest)
    throw_invalid_segment(address, size, "is invalid: both must be multiples of " + std::to_string(kMinBlockSize));
  if (overlaps(address, size)) throw_invalid_segment(address, size, "would overlap another");
  ensure_spares(1);  // first, as the next line
  Segment& segment = segments_[address];
  Block* block = new_record();
  if (rank == kNextRank) rank = adopted_segments_;
  ++adopted_segments_;
  segment = Segment{address, size, queue, rank, list->small, page_size, stack, list, block};
  block->address = address;
  block->size = size;
  block->segment = &segment;
  block->rank = rank;
  block->untouched = true;
  return block;
}

// Counts memory that was reserved (positive) or released (negative).
void Pool::count_reserved(const Segment& segment, int64_t change) {
  statistics_.add(kReservedBytes, segment.small, change);
  segment.free_list->partition->reserved.add(segment.small, change);
  if (!segment.expandable()) {
    statistics_.add(kSegment, segment.small, change > 0 ? 1 : -1);
    if (segment.size >= policy_.max_split) oversize_segments_.add(segment.small, change > 0 ? 1 : -1);
  }
}

void Pool::adopt(uint64_t address, uint64_t size, uint64_t queue, bool small, uint32_t stack, uint64_t rank,
                 uint32_t pool_number) {
  PoolLock lock(mutex_);
  FreeList* list = free_list(partition_or_default(pool_number), queue, small);
  Block* block = create_segment(address, size, queue, stack, rank, list, 0);
  list_new_segment(block);
  count_reserved(*block->segment, bytes(size));
  if (ring_) record_event(Action::Reserve, address, size, queue, stack, pool_number);
}

Block* Pool::adopt_and_allocate(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue, uint32_t stack,
                                uint32_t pool_number) {
  PoolLock lock(mutex_);
  const uint64_t wanted = policy_.block_size(nbytes);
  FreeList* list = free_list(partition_or_default(pool_number), queue, is_small(wanted));
  Block* block = create_segment(address, size, queue, stack, kNextRank, list, 0);
  list_new_segment(block);
  count_reserved(*block->segment, bytes(size));
  if (ring_) record_event(Action::Reserve, address, size, queue, stack, pool_number);
  if (!fits(nbytes, size)) return nullptr;
  if (block->segment->is_heap()) block = carve_buffer(block->segment, wanted);
  return allocate_from(block, wanted, nbytes, stack, policy_.expandable);
}

bool Pool::evict(uint64_t address, uint32_t stack) {
  PoolLock lock(mutex_);
  const auto at = segments_.find(address);
  if (at == segments_.end()) return false;
  Segment& segment = at->second;
  if (segment.expandable() || segment.first->is_split()) return false;
  if (segment.first->state != (segment.is_heap() ? State::Gap : State::Free)) return false;
  if (segment.is_heap()) {
    segment.free_list->heaps.erase({segment.largest_gap(), segment.rank, segment.address});
  } else {
    remove_free(segment.first);
  }
  count_reserved(segment, -bytes(segment.size));
  if (ring_) {
    const uint32_t pool_number = segment.free_list->partition->pool_number;
    record_event(Action::Release, address, segment.size, segment.queue, stack == 0 ? segment.stack : stack,
                 pool_number);
  }
  erase_segment(&segment);
  return true;
}

void Pool::erase_segment(Segment* segment) {
  recycle(segment->first);
  segments_.erase(segment->address);
}

std::vector<Evictable> Pool::evictable(bool small, uint32_t pool_number, bool expandable, bool parts) const {
  PoolLock lock(mutex_);
  std::vector<Evictable> found;
  const PoolPartition* partition = find_partition(pool_number);
  if (partition == nullptr) return found;
  for (const auto& [queue, list] : partition->lists[small ? 1 : 0]) {
    for (const auto& [key, heap] : list->heaps) {
      if (!parts && std::get<0>(key) == heap->size) found.push_back({heap->address, heap->size, queue, 0, false, 0});
    }
    for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) {
      const Segment& segment = *block->segment;
      const bool whole = !block->is_split();
      if (segment.expandable() || segment.is_heap() ? parts || (expandable && whole) : whole) {
        const uint64_t age = partition->clock[small ? 1 : 0] - block->freed_at;
        found.push_back({block->address, block->size, queue, age, segment.expandable(), block->freed_at});
      }
    }
  }
  return found;
}

void Pool::create_pool(uint32_t pool_number, bool allows_splits, bool defers_frees) {
  PoolLock lock(mutex_);
  auto at = partitions_.find(pool_number);
  if (at == partitions_.end()) at = partitions_.emplace(pool_number, std::make_unique<PoolPartition>()).first;
  PoolPartition* const partition = at->second.get();
  partition->pool_number = pool_number;
  partition->allows_splits = allows_splits;
  partition->defers_frees = defers_frees;
}

bool Pool::remove_pool(uint32_t pool_number) {
  PoolLock lock(mutex_);
  const auto at = partitions_.find(pool_number);
  if (at == partitions_.end()) return false;
  for (const auto& [address, segment] : segments_) {
    if (segment.free_list->partition == at->second.get()) return false;
  }
  for (auto& lists : at->second->lists) lists.clear();
  return true;
}

std::vector<uint32_t> Pool::pools_with_segments() const {
  PoolLock lock(mutex_);
  std::set<uint32_t> found;
  for (const auto& [address, segment] : segments_) found.insert(segment.free_list->partition->pool_number);
  return {found.begin(), found.end()};
}

uint64_t Pool::free_bytes(uint32_t pool_number) const {
  PoolLock lock(mutex_);
  uint64_t total = 0;
  if (const PoolPartition* partition = find_partition(pool_number)) {
    for (const auto& lists : partition->lists) {
      for (const auto& [queue, list] : lists) {
        for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) total += block->size;
      }
    }
  }
  return total;
}

Stat Pool::reserved_by(uint32_t pool_number, SizeClass size_class) const {
  PoolLock lock(mutex_);
  const PoolPartition* partition = find_partition(pool_number);
  return partition == nullptr ? Stat{} : partition->reserved.read(size_class);
}

bool Pool::owns(uint64_t address) const {
  PoolLock lock(mutex_);
  return overlaps(address, 1);
}

bool Pool::overlaps(uint64_t address, uint64_t size) const {
  auto after = segments_.lower_bound(address);
  if (after != segments_.end() && after->first - address < size) return true;
  return after != segments_.begin() && address - (--after)->first < after->second.size;
}

}  // namespace forebay
