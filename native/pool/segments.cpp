// What a pool has to hand out of: segments that come and go, and the homes they belong to.
#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>

#include "pool/pool.hpp"

namespace forebay {
namespace {

using Lock = std::lock_guard<std::mutex>;

int64_t bytes(uint64_t size) { return static_cast<int64_t>(size); }

[[noreturn]] void refuse_segment(uint64_t address, uint64_t size, const std::string& why) {
  std::ostringstream message;
  message << "a segment at 0x" << std::hex << address << " of " << std::dec << size << " bytes " << why;
  throw std::invalid_argument(message.str());
}

}  // namespace

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
  block->rank = rank;
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
  settle_in(block);
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
  settle_in(block);
  reserve(*block->segment, bytes(size));
  if (ring_) push(Action::Reserve, address, size, queue, stack, home_number);
  if (!may_serve(nbytes, size)) return nullptr;
  if (block->segment->heap()) block = make_buffer(block->segment, wanted);
  return hand_out(block, wanted, nbytes, stack, policy_.growing);
}

bool Pool::evict(uint64_t address) {
  Lock lock(mutex_);
  const auto at = segments_.find(address);
  if (at == segments_.end()) return false;
  Segment& segment = at->second;
  if (segment.growing() || segment.first->split()) return false;
  if (segment.first->state != (segment.heap() ? State::Room : State::Free)) return false;
  if (segment.heap()) {
    segment.free_list->heaps.erase({segment.available(), segment.rank});
  } else {
    unlist(segment.first);
  }
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

std::vector<Evictable> Pool::evictable(bool small, uint32_t home_number, bool growing, bool pieces) const {
  Lock lock(mutex_);
  std::vector<Evictable> found;
  const Home* home = home_of(home_number);
  if (home == nullptr) return found;
  for (const auto& [queue, list] : home->lists[small ? 1 : 0]) {
    for (const auto& [key, heap] : list->heaps) {
      if (!pieces && key.first == heap->size) found.push_back({heap->address, heap->size, queue, 0, false});
    }
    for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) {
      const bool grows = block->segment->growing();
      if (grows || block->segment->heap() ? pieces || (growing && !block->split()) : !block->split())
        found.push_back({block->address, block->size, queue, home->clock[small ? 1 : 0] - block->born, grows});
    }
  }
  return found;
}

void Pool::make_home(uint32_t number, bool splits, bool waits) {
  Lock lock(mutex_);
  auto& home = homes_[number];
  if (home == nullptr) home = std::make_unique<Home>();
  home->number = number;
  home->splits = splits;
  home->waits = waits;
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

}  // namespace forebay
