// Heaps: segments tiled by buffers and the gaps between them, as in PyTorch's Metal allocator. A
// free buffer keeps its size and can be allocated again until it is released into a gap.
#include <memory>
#include <tuple>
#include <utility>

#include "pool/pool.hpp"

namespace forebay {
namespace {

// Re-sorts a heap in its free list when its largest gap has changed. Neither step can fail.
class GapUpdate {
 public:
  explicit GapUpdate(Segment* heap)
      : heap_(heap), node_(list().extract({heap->largest_gap(), heap->rank, heap->address})) {}
  ~GapUpdate() {
    std::get<0>(node_.key()) = heap_->largest_gap();
    list().insert(std::move(node_));
  }
  GapUpdate(const GapUpdate&) = delete;
  GapUpdate& operator=(const GapUpdate&) = delete;

 private:
  using Heaps = decltype(FreeList::heaps);
  Heaps& list() { return heap_->free_list->heaps; }

  Segment* heap_;
  Heaps::node_type node_;
};

bool is_gap(const Block* block) { return block != nullptr && block->state == State::Gap; }

}  // namespace

void Pool::list_new_segment(Block* block) {
  Segment& segment = *block->segment;
  if (!policy_.heaps) return insert_free(block);
  block->state = State::Gap;
  try {
    segment.gaps = std::make_unique<Gaps>();
    segment.gaps->emplace(std::pair(block->size, block->address), block);
    segment.free_list->heaps.emplace(std::tuple(block->size, segment.rank, segment.address), &segment);
  } catch (...) {
    erase_segment(&segment);
    throw;
  }
}

// Returns the smallest free buffer that is large enough, unless its excess is above kMaxBufferExcess: then the
// allocator's recovery steps decide.
Block* Pool::find_buffer(FreeList* list, uint64_t size) {
  if (size > policy_.heap_limit ||
      static_cast<uint64_t>(statistics_.read(kReservedBytes, kAllSizes).current) > policy_.heap_limit - size)
    return nullptr;
  if (policy_.track_age && !list->small) ++list->partition->clock[0];
  Block* block = list->best_fit(size);
  return block == nullptr || block->size > size + kMaxBufferExcess ? nullptr : block;
}

BestFitBuffer Pool::best_fit_buffer(uint64_t nbytes, uint64_t queue, uint32_t pool_number) const {
  PoolLock lock(mutex_);
  const uint64_t size = policy_.block_size(nbytes);
  const PoolPartition* partition = find_partition(pool_number);
  if (partition == nullptr) return {};
  const auto& lists = partition->lists[is_small(size) ? 1 : 0];
  const auto at = lists.find(queue);
  if (at == lists.end()) return {};
  const FreeList& list = *at->second;
  const bool has_gap = list.heaps.lower_bound({size, 0, 0}) != list.heaps.end();
  const Block* block = list.best_fit(size);
  return block == nullptr ? BestFitBuffer{0, 0, has_gap} : BestFitBuffer{block->address, block->size, has_gap};
}

Block* Pool::new_buffer(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t pool_number) {
  if (nbytes == 0 || nbytes >= kMaxRequest) return nullptr;
  PoolLock lock(mutex_);
  const uint64_t size = policy_.block_size(nbytes);
  PoolPartition* partition = find_partition(pool_number);
  if (partition == nullptr) return nullptr;
  const auto& heaps = free_list(partition, queue, is_small(size))->heaps;
  const auto at = heaps.lower_bound({size, 0, 0});
  if (at == heaps.end()) return nullptr;
  return allocate_from(carve_buffer(at->second, size), size, nbytes, stack, false);
}

// Makes a free, listed buffer at the beginning of the smallest gap that is large enough.
Block* Pool::carve_buffer(Segment* heap, uint64_t size) {
  ensure_spares(1);  // first, as it may throw
  GapUpdate update(heap);
  auto gap = heap->gaps->extract(heap->gaps->lower_bound({size, 0}));
  Block* block = gap.mapped();
  if (block->size > size) {
    Block* rest = split_off(block, size);
    gap.key() = {rest->size, rest->address};
    gap.mapped() = rest;
    heap->gaps->insert(std::move(gap));
  }
  block->state = State::Free;
  insert_free(block);
  return block;
}

uint64_t Pool::release_buffer(uint64_t address, uint64_t size) {
  PoolLock lock(mutex_);
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return 0;
  Segment& heap = std::prev(after)->second;
  Block* block = heap.is_heap() ? heap.free_list->find(size, heap.rank, address) : nullptr;
  if (block == nullptr) return 0;
  GapUpdate update(&heap);
  Gaps& gaps = *heap.gaps;
  const auto extract = [&](const Block* gap) { return gaps.extract({gap->size, gap->address}); };
  Gaps::node_type node;
  if (!is_gap(block->prev) && !is_gap(block->next)) {
    node = gaps.extract(gaps.emplace(std::pair(size, address), block).first);  // first, as it may throw
  }
  remove_free(block);
  for (Block* neighbour : {block->prev, block->next}) {
    if (!is_gap(neighbour)) continue;
    node = extract(neighbour);
    block->untouched = false;
    absorb(block, neighbour);
  }
  block->state = State::Gap;
  node.key() = {block->size, block->address};
  node.mapped() = block;
  gaps.insert(std::move(node));
  return block->size == heap.size ? heap.address : 0;
}

}  // namespace forebay
