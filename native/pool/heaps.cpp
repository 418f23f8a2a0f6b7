// Heaps: segments that are tiled by whole buffers and the room between them, as PyTorch's allocator for Metal has them
// (torch-semantics 4.1). A free buffer keeps its size, and serves again, until it is released into room.
#include <memory>
#include <utility>

#include "pool/pool.hpp"

namespace forebay {
namespace {

using Lock = std::lock_guard<std::mutex>;

// Files a heap anew when what is available in it has changed. Neither step can fail.
class Refiled {
 public:
  explicit Refiled(Segment* heap) : heap_(heap), node_(list().extract({heap->available(), heap->rank})) {}
  ~Refiled() {
    node_.key().first = heap_->available();
    list().insert(std::move(node_));
  }
  Refiled(const Refiled&) = delete;
  Refiled& operator=(const Refiled&) = delete;

 private:
  using Heaps = decltype(FreeList::heaps);
  Heaps& list() { return heap_->free_list->heaps; }

  Segment* heap_;
  Heaps::node_type node_;
};

bool is_room(const Block* block) { return block != nullptr && block->state == State::Room; }

}  // namespace

void Pool::settle_in(Block* block) {
  Segment& segment = *block->segment;
  if (!policy_.heaps) return list(block);
  block->state = State::Room;
  try {
    segment.rooms = std::make_unique<Rooms>();
    segment.rooms->emplace(std::pair(block->size, block->address), block);
    segment.free_list->heaps.emplace(std::pair(block->size, segment.rank), &segment);
  } catch (...) {
    forget(&segment);
    throw;
  }
}

// The smallest free one that is large enough, if it is not far too large; the ladder decides what becomes of such a
// one.
Block* Pool::buffer(FreeList* list, uint64_t size) {
  if (size > policy_.limit || static_cast<uint64_t>(ledger_.read(kReservedBytes, kAll).current) > policy_.limit - size)
    return nullptr;
  if (policy_.ages && !list->small) ++list->home->clock[0];
  Block* block = list->best_fit(size);
  return block == nullptr || block->size > size + kSlack ? nullptr : block;
}

Nearest Pool::nearest(uint64_t nbytes, uint64_t queue, uint32_t home_number) const {
  Lock lock(mutex_);
  const uint64_t size = policy_.block_size(nbytes);
  const Home* home = home_of(home_number);
  if (home == nullptr) return {};
  const auto& lists = home->lists[is_small(size) ? 1 : 0];
  const auto at = lists.find(queue);
  if (at == lists.end()) return {};
  const FreeList& list = *at->second;
  const bool room = list.heaps.lower_bound({size, 0}) != list.heaps.end();
  const Block* block = list.best_fit(size);
  return block == nullptr ? Nearest{0, 0, room} : Nearest{block->address, block->size, room};
}

Block* Pool::place(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home_number) {
  if (nbytes == 0 || nbytes >= kMost) return nullptr;
  Lock lock(mutex_);
  const uint64_t size = policy_.block_size(nbytes);
  Home* home = home_of(home_number);
  if (home == nullptr) return nullptr;
  const auto& heaps = free_list(home, queue, is_small(size))->heaps;
  const auto at = heaps.lower_bound({size, 0});
  if (at == heaps.end()) return nullptr;
  return hand_out(make_buffer(at->second, size), size, nbytes, stack, false);
}

// At the beginning of the smallest room that is large enough; it is free, and listed.
Block* Pool::make_buffer(Segment* heap, uint64_t size) {
  have_spares(1);  // what may fail comes first
  Refiled refiled(heap);
  auto room = heap->rooms->extract(heap->rooms->lower_bound({size, 0}));
  Block* block = room.mapped();
  if (block->size > size) {
    Block* rest = cut(block, size);
    room.key() = {rest->size, rest->address};
    room.mapped() = rest;
    heap->rooms->insert(std::move(room));
  }
  block->state = State::Free;
  list(block);
  return block;
}

uint64_t Pool::release(uint64_t address, uint64_t size) {
  Lock lock(mutex_);
  const auto behind = segments_.upper_bound(address);
  if (behind == segments_.begin()) return 0;
  Segment& heap = std::prev(behind)->second;
  Block* block = heap.heap() ? heap.free_list->find(size, heap.rank, address) : nullptr;
  if (block == nullptr) return 0;
  Refiled refiled(&heap);
  Rooms& rooms = *heap.rooms;
  const auto extract = [&](const Block* room) { return rooms.extract({room->size, room->address}); };
  Rooms::node_type node;
  if (!is_room(block->prev) && !is_room(block->next)) {
    node = rooms.extract(rooms.emplace(std::pair(size, address), block).first);  // what may fail comes first
  }
  unlist(block);
  for (Block* neighbour : {block->prev, block->next}) {
    if (!is_room(neighbour)) continue;
    node = extract(neighbour);
    block->untouched = false;
    merge(block, neighbour);
  }
  block->state = State::Room;
  node.key() = {block->size, block->address};
  node.mapped() = block;
  rooms.insert(std::move(node));
  return block->size == heap.size ? heap.address : 0;
}

}  // namespace forebay
