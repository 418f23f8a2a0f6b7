// Growing segments: address space that is reserved once, whose pages come and go (PyTorch's expandable segments,
// torch-semantics 3.14). A piece without memory is Bare; on its way it is Coming or Leaving, and nobody's.
#include <algorithm>

#include "pool.hpp"

namespace penstock {
namespace {

using Lock = std::lock_guard<std::mutex>;

bool usable(const Block* block) {
  return block != nullptr && (block->state == State::Free || block->state == State::Bare);
}

}  // namespace

void Pool::adopt_space(uint64_t address, uint64_t size, uint64_t page, uint64_t queue, bool small, uint32_t stack,
                       uint32_t home_number) {
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  FreeList* where = free_list(home == nullptr ? &common_ : home, queue, small);
  Block* block = install(address, size, queue, stack, kArrival, where, page);
  block->state = State::Bare;
  where->bare.emplace(address, block);
  ++growing_;
  plain_ = false;
}

Piece Pool::room(uint64_t nbytes, uint64_t queue, uint32_t home_number) {
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  const uint64_t size = policy_.block_size(nbytes);
  FreeList* where = free_list(home == nullptr ? &common_ : home, queue, is_small(size));
  for (const auto& [address, bare] : where->bare) {
    Block* const first = usable(bare->prev) ? bare->prev : bare;  // a free block right before it serves as well
    uint64_t space = 0;
    for (const Block* at = first; space < size && usable(at); at = at->next) space += at->size;
    if (space < size) continue;
    const uint64_t there = first == bare ? 0 : first->size;
    if (there >= size) return {first->address, 0};
    const uint64_t here = std::min(round_up(size - there, bare->segment->page), bare->size);
    if (here < bare->size) {
      have_spares(1);
      Block*& rest = where->bare[bare->address + here];
      rest = cut(bare, here);
    }
    bare->state = State::Coming;
    where->bare.erase(address);
    return {bare->address, bare->size};
  }
  return {};
}

Block* Pool::take_at(uint64_t address, uint64_t nbytes, uint32_t stack) {
  Lock lock(mutex_);
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  Block* block = std::prev(after)->second.first;
  while (block != nullptr && block->address < address) block = block->next;
  const uint64_t size = policy_.block_size(nbytes);
  if (block == nullptr || block->address != address || block->state != State::Free || block->size < size) return nullptr;
  return hand_out(block, size, nbytes, stack);
}

Block* Pool::came(uint64_t address, uint64_t nbytes, uint32_t stack) {
  Lock lock(mutex_);
  Block* block = piece_at(address);
  const Segment& segment = *block->segment;
  const uint64_t size = block->size, wanted = policy_.block_size(nbytes);
  block->state = State::Free;
  block->untouched = true;
  join_free(block);
  reserve(segment, static_cast<int64_t>(size));
  if (ring_) push(Action::Map, address, size, segment.queue, stack, segment.free_list->home->number);
  return block->size < wanted ? nullptr : hand_out(block, wanted, nbytes, stack);
}

std::vector<Piece> Pool::idle_pages(bool small, uint32_t home_number) const {
  Lock lock(mutex_);
  std::vector<Piece> found;
  const Home* home = home_of(home_number);
  if (home == nullptr) return found;
  for (const auto& [queue, list] : home->lists[small ? 1 : 0]) {
    for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) {
      if (!block->segment->growing()) continue;
      const uint64_t start = block->segment->address, page = block->segment->page;
      const uint64_t begin = round_up(block->address - start, page);
      const uint64_t end = (block->address + block->size - start) / page * page;
      if (begin < end) found.push_back({start + begin, end - begin});
    }
  }
  return found;
}

bool Pool::leave(Piece piece) {
  Lock lock(mutex_);
  auto after = segments_.upper_bound(piece.address);
  if (after == segments_.begin()) return false;
  Block* block = (--after)->second.first;
  while (block != nullptr && block->address + block->size <= piece.address) block = block->next;
  if (block == nullptr || block->state != State::Free || piece.address < block->address ||
      piece.address + piece.size > block->address + block->size)
    return false;
  have_spares(2);
  unlist(block);
  if (piece.address > block->address) {
    // The piece is what the block was; what stays of it is new.
    Block* rest = cut(block, piece.address - block->address);
    std::swap(rest->requested, block->requested);
    list(block);
    block = rest;
  }
  if (piece.size < block->size) list(cut(block, piece.size));
  block->state = State::Leaving;
  return true;
}

bool Pool::left(uint64_t address) {
  Lock lock(mutex_);
  Block* block = piece_at(address);
  const Segment& segment = *block->segment;
  reserve(segment, -static_cast<int64_t>(block->size));
  if (ring_) {
    const uint32_t home = segment.free_list->home->number;
    push(Action::Unmap, address, block->size, segment.queue, segment.stack, home);
  }
  join_bare(block);
  return !block->split();
}

void Pool::stayed(uint64_t address) {
  Lock lock(mutex_);
  Block* block = piece_at(address);
  if (block->state == State::Coming) {
    join_bare(block);
  } else {
    block->state = State::Free;
    join_free(block);
  }
}

bool Pool::evict_space(uint64_t address) {
  Lock lock(mutex_);
  const auto at = segments_.find(address);
  if (at == segments_.end() || at->second.first->split() || at->second.first->state != State::Bare) return false;
  at->second.free_list->bare.erase(address);
  forget(&at->second);
  --growing_;
  plain_ = policy_.max_split == kUnlimited && !policy_.ages && growing_ == 0;
  return true;
}

// The piece on its way that begins here.
Block* Pool::piece_at(uint64_t address) {
  Block* block = std::prev(segments_.upper_bound(address))->second.first;
  while (block->address != address) block = block->next;
  return block;
}

void Pool::join_free(Block* block) {
  for (Block* neighbour : {block->prev, block->next}) {
    if (neighbour == nullptr || neighbour->state != State::Free) continue;
    block->untouched = block->untouched && neighbour->untouched;
    unlist(neighbour);
    merge(block, neighbour);
  }
  list(block);
}

void Pool::join_bare(Block* block) {
  auto& bare = block->segment->free_list->bare;
  for (Block* neighbour : {block->prev, block->next}) {
    if (neighbour == nullptr || neighbour->state != State::Bare) continue;
    bare.erase(neighbour->address);
    merge(block, neighbour);
  }
  block->state = State::Bare;
  bare.emplace(block->address, block);
}

}  // namespace penstock
