// Growing segments: address space that is reserved once, whose pages come and go (PyTorch's expandable segments,
// torch-semantics 3.14). A piece without memory is Bare; on its way it is Coming or Leaving, and nobody's.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "pool/pool.hpp"

namespace forebay {
namespace {

using Lock = std::lock_guard<std::mutex>;

bool usable(const Block* block) {
  return block != nullptr && (block->state == State::Free || block->state == State::Bare);
}

}  // namespace

void Pool::adopt_space(uint64_t address, uint64_t size, uint64_t page, uint64_t queue, bool small, uint32_t stack,
                       uint32_t home_number) {
  if (page == 0 || page % kQuantum != 0 || size % page != 0)
    throw std::invalid_argument("a growing segment is made of whole pages, and those of multiples of " +
                                std::to_string(kQuantum) + ": " + std::to_string(size) + ", " + std::to_string(page));
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  FreeList* where = free_list(home == nullptr ? &common_ : home, queue, small);
  std::map<uint64_t, Block*> place;  // what may fail comes first
  Block*& listed = place[address];
  listed = install(address, size, queue, stack, kArrival, where, page);
  listed->state = State::Bare;
  where->bare.merge(place);
  ++growing_;
  plain_ = plain();
}

Piece Pool::room(uint64_t nbytes, uint64_t queue, uint32_t home_number) {
  Lock lock(mutex_);
  Home* home = home_of(home_number);
  const uint64_t size = policy_.block_size(nbytes);
  FreeList* where = free_list(home == nullptr ? &common_ : home, queue, is_small(size));
  for (const auto& entry : where->bare) {
    Block* const bare = entry.second;
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
    where->bare.erase(bare->address);
    return {bare->address, bare->size};
  }
  return {};
}

bool Pool::come(Piece piece) {
  Lock lock(mutex_);
  Block* block = block_with(piece.address);
  if (block == nullptr || block->state != State::Bare) return false;
  const uint64_t page = block->segment->page, before = piece.address - block->address;
  if (piece.size == 0 || piece.size % page != 0 || (piece.address - block->segment->address) % page != 0) return false;
  if (piece.size > block->size - before) return false;
  have_spares(2);
  auto& bare = block->segment->free_list->bare;
  Block** behind = piece.size < block->size - before ? &bare[piece.address + piece.size] : nullptr;
  if (before > 0) {
    block = cut(block, before);
  } else {
    bare.erase(block->address);
  }
  if (behind != nullptr) *behind = cut(block, piece.size);
  block->state = State::Coming;
  return true;
}

Block* Pool::take_at(uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home) {
  Lock lock(mutex_);
  Block* block = block_at(address);
  const uint64_t size = policy_.block_size(nbytes);
  if (block == nullptr) return nullptr;
  const Segment& segment = *block->segment;
  if (queue != kAnyQueue && (segment.queue != queue || segment.free_list->home->number != home)) return nullptr;
  if (block->state != State::Free || !may_serve(nbytes, block->size)) return nullptr;
  return hand_out(block, size, nbytes, stack, policy_.growing);
}

Block* Pool::came(uint64_t address, uint64_t nbytes, uint32_t stack) {
  Lock lock(mutex_);
  Block* block = block_at(address);
  if (block == nullptr || block->state != State::Coming) return nullptr;
  const Segment& segment = *block->segment;
  const uint64_t size = block->size;
  block->state = State::Free;
  block->untouched = true;
  join_free(block);
  reserve(segment, static_cast<int64_t>(size));
  if (ring_) push(Action::Map, address, size, segment.queue, stack, segment.free_list->home->number);
  return may_serve(nbytes, block->size) ? hand_out(block, policy_.block_size(nbytes), nbytes, stack, policy_.growing)
                                        : nullptr;
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
  Block* block = block_with(piece.address);
  if (block == nullptr || block->state != State::Free || !block->segment->growing()) return false;
  const uint64_t page = block->segment->page, before = piece.address - block->address;
  if (piece.size == 0 || piece.size % page != 0 || (piece.address - block->segment->address) % page != 0) return false;
  if (piece.size > block->size - before) return false;
  have_spares(2);
  unlist(block);
  if (before > 0) {
    // The piece is what the block was; what stays of it is new.
    Block* rest = cut(block, before);
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
  Block* block = block_at(address);
  if (block == nullptr || block->state != State::Leaving) return false;
  const Segment& segment = *block->segment;
  const uint64_t size = block->size;
  join_bare(block);
  reserve(segment, -static_cast<int64_t>(size));
  if (ring_) push(Action::Unmap, address, size, segment.queue, segment.stack, segment.free_list->home->number);
  return !block->split();
}

void Pool::stayed(uint64_t address) {
  Lock lock(mutex_);
  Block* block = block_at(address);
  if (block == nullptr) return;
  if (block->state == State::Coming) {
    join_bare(block);
  } else if (block->state == State::Leaving) {
    block->state = State::Free;
    join_free(block);
  }
}

std::vector<Moving> Pool::on_the_way() const {
  Lock lock(mutex_);
  std::vector<Moving> found;
  for (const auto& [address, segment] : segments_) {
    if (!segment.growing()) continue;
    for (const Block* block = segment.first; block != nullptr; block = block->next) {
      if (block->state == State::Coming || block->state == State::Leaving)
        found.push_back({block->address, block->size, block->state == State::Leaving});
    }
  }
  return found;
}

bool Pool::evict_space(uint64_t address) {
  Lock lock(mutex_);
  const auto at = segments_.find(address);
  if (at == segments_.end() || at->second.first->split() || at->second.first->state != State::Bare) return false;
  at->second.free_list->bare.erase(address);
  forget(&at->second);
  --growing_;
  plain_ = plain();
  return true;
}

Block* Pool::block_with(uint64_t address) {
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  const Segment& segment = std::prev(after)->second;
  const auto& bare = segment.free_list->bare;
  const auto behind = bare.upper_bound(address);
  const auto ours = [&](const Block* piece) { return piece->segment == &segment; };
  // From the bare pieces on both sides: pages come and go next to them, and a segment may have a million blocks.
  Block* front = behind != bare.begin() && ours(std::prev(behind)->second) ? std::prev(behind)->second : segment.first;
  Block* back = behind != bare.end() && ours(behind->second) ? behind->second : nullptr;
  while (front != nullptr && front->address + front->size <= address) {
    front = front->next;
    if (back == nullptr) continue;
    back = back->prev;
    if (back->address <= address) return back;
  }
  return front;
}

Block* Pool::block_at(uint64_t address) {
  Block* block = block_with(address);
  return block == nullptr || block->address != address ? nullptr : block;
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
  const auto is_bare = [](const Block* other) { return other != nullptr && other->state == State::Bare; };
  bare[is_bare(block->prev) ? block->prev->address : block->address] = block;  // what may fail comes first
  if (is_bare(block->prev)) merge(block, block->prev);
  if (is_bare(block->next)) {
    bare.erase(block->next->address);
    merge(block, block->next);
  }
  block->state = State::Bare;
}

}  // namespace forebay
