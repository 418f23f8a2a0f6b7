// Checkpoints of a partition: which of its blocks were live at one moment, and their restoration.
//
// A restoration is the sequence of allocations and frees that PyTorch makes, which statistics and the history show: all
// live blocks are freed; then, segment by segment, all blocks of the checkpoint are allocated, and those that were not
// live are freed. Everything that could fail comes first (Note [Pool checkpoints]), except for the entry of a block
// that other queues use.
#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>

#include "pool/pool.hpp"

namespace forebay {
namespace {

bool is_committed(const Block& block) { return block.state <= State::PendingFree; }

// Returns true if the block is pending, or would be when it is freed.
bool is_used_by_others(const Block& block) {
  return block.state == State::PendingFree || (block.state == State::Live && !block.users.empty());
}

[[noreturn]] void throw_at(const char* message, uint64_t address) {
  std::ostringstream text;
  text << message << " 0x" << std::hex << address;
  throw std::runtime_error(text.str());
}

}  // namespace

// PyTorch's order, where that is defined: segments that begin with a free block come last, in free-list order, and the
// others, in PyTorch a hash table, by arrival. A segment that begins with uncommitted pages is not listed.
std::vector<const Segment*> Pool::segments_in_order(uint32_t pool_number) const {
  std::vector<const Segment*> found;
  const PoolPartition* partition = find_partition(pool_number);
  if (partition == nullptr) throw std::runtime_error("the pool does not exist");
  for (const auto& [address, segment] : segments_) {
    if (segment.free_list->partition != partition) continue;
    if (segment.is_heap() || partition->defers_frees) throw std::runtime_error("a pool of heaps has no checkpoints");
    if (segment.first->state == State::Live || segment.first->state == State::PendingFree) found.push_back(&segment);
  }
  std::sort(found.begin(), found.end(), [](const Segment* a, const Segment* b) { return a->rank < b->rank; });
  for (const bool small : {true, false}) {
    for (const auto& [queue, list] : partition->lists[small ? 1 : 0]) {
      for (const Block* block = list->smallest(); block != nullptr; block = list->next(block)) {
        if (block->prev == nullptr) found.push_back(block->segment);
      }
    }
  }
  return found;
}

Checkpoint Pool::checkpoint(uint32_t pool_number) const {
  PoolLock lock(mutex_);
  Checkpoint found;
  for (const Segment* segment : segments_in_order(pool_number)) {
    auto& blocks = found.emplace_back();
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->state == State::PendingFree)
        throw std::runtime_error("Events should have synchronized when checkpointing block");
      blocks.push_back({block->address, block->size, block->state == State::Live, is_committed(*block)});
    }
  }
  return found;
}

std::vector<uint64_t> Pool::live_addresses(uint32_t pool_number) const {
  PoolLock lock(mutex_);
  std::vector<uint64_t> found;
  const PoolPartition* partition = find_partition(pool_number);
  for (const auto& [address, segment] : segments_) {
    if (segment.free_list->partition != partition) continue;
    for (const Block* block = segment.first; block != nullptr; block = block->next) {
      if (block->state == State::Live) found.push_back(block->address);
    }
  }
  return found;
}

Restored Pool::restore(uint32_t pool_number, const Checkpoint& saved, uint32_t stack, uint32_t free_stack) {
  PoolLock lock(mutex_);
  check_restorable(pool_number, saved);
  const std::vector<const Segment*> segments = segments_in_order(pool_number);

  size_t blocks = 0, live = 0, used = 0;
  for (const auto& segment : saved) blocks += segment.size();
  for (const Segment* segment : segments) {
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      live += block->state == State::Live ? 1 : 0;
      used += is_used_by_others(*block) ? 1 : 0;
    }
  }
  Restored result;
  std::vector<std::pair<uint64_t, void*>> owners;
  std::vector<Block*> created;
  owners.reserve(live);
  result.moved.reserve(live);
  created.reserve(blocks);
  result.unowned.reserve(blocks);
  deferred_.reserve(deferred_.size() + used);
  pending_frees_.reserve(pending_frees_.size() + used);
  ensure_spares(static_cast<int>(2 * blocks));
  live_.reserve_slots(blocks);

  for (const Segment* segment : segments) {
    for (Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->state != State::Live) continue;
      if (block->owner != nullptr) owners.emplace_back(block->address, block->owner);
      result.pending |= begin_free(block, free_stack);
    }
  }
  for (const auto& segment : saved) restore_segment(segment, stack, free_stack, &created);

  std::sort(owners.begin(), owners.end());
  std::sort(created.begin(), created.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
  auto owner = owners.begin();
  for (Block* block : created) {
    for (; owner != owners.end() && owner->first < block->address; ++owner)
      result.moved.push_back({owner->second, nullptr});
    if (owner != owners.end() && owner->first == block->address) {
      block->owner = owner->second;
      result.moved.push_back({owner++->second, block});
    } else {
      result.unowned.push_back(block->address);
    }
  }
  for (; owner != owners.end(); ++owner) result.moved.push_back({owner->second, nullptr});
  return result;
}

// Throws unless the saved blocks tile segments of the partition, each once, and their memory is still committed. Blocks
// that other queues use cannot be divided or merged; PyTorch does not find a segment that begins with one.
void Pool::check_restorable(uint32_t pool_number, const Checkpoint& saved) const {
  const PoolPartition* partition = find_partition(pool_number);
  std::set<uint64_t> seen;
  for (const auto& blocks : saved) {
    if (blocks.empty()) throw std::invalid_argument("a segment of the checkpoint has no blocks");
    const auto at = segments_.find(blocks.front().address);
    if (at == segments_.end() || at->second.free_list->partition != partition || is_used_by_others(*at->second.first) ||
        !is_committed(*at->second.first))
      throw_at(" could not find", blocks.front().address);
    uint64_t left = at->second.size;
    for (const SavedBlock& wanted : blocks) {
      if (wanted.address != at->first + at->second.size - left || wanted.size == 0 || wanted.size > left ||
          wanted.size % kMinAlignment || (wanted.live && !wanted.committed))
        throw_at("the blocks of the checkpoint do not tile the segment at", at->first);
      left -= wanted.size;
    }
    if (left || !seen.insert(at->first).second)
      throw_at("the blocks of the checkpoint do not tile the segment at", at->first);
    const Block* block = at->second.first;
    for (const SavedBlock& wanted : blocks) {
      if (!wanted.committed) continue;
      uint64_t covered = wanted.address;
      const uint64_t end = wanted.address + wanted.size;
      while (block != nullptr && block->address + block->size <= wanted.address) block = block->next;
      for (const Block* part = block; part != nullptr && part->address < end && is_committed(*part);
           part = part->next) {
        if (is_used_by_others(*part) && (part->address != wanted.address || part->size != wanted.size))
          throw_at("Events should have synchronized when setting checkpointed block", part->address);
        covered = part->address + part->size;
      }
      if (covered < end) throw_at("memory of the checkpoint was released at", covered);
    }
  }
}

// Allocates all blocks of a saved segment, then frees those that were not live.
void Pool::restore_segment(const std::vector<SavedBlock>& saved, uint32_t stack, uint32_t free_stack,
                           std::vector<Block*>* created) {
  Block* const first = segments_.at(saved.front().address).first;
  const auto next_committed = [&](Block* block, const SavedBlock& wanted) {
    while (block->address + block->size <= wanted.address) block = block->next;
    return block;
  };
  Block* block = first;
  for (const SavedBlock& wanted : saved) {
    if (!wanted.committed) continue;
    block = next_committed(block, wanted);
    if (block->state == State::PendingFree) {
      if (!wanted.live) continue;
      pending_frees_.erase(block->serial);  // its users stay, for the next free
      block->state = State::Live;
      statistics_.add(kRequestedBytes, block->segment->small, static_cast<int64_t>(block->size - block->requested));
      block->requested = block->size;
      block->stack = stack;
      block->owner = nullptr;
      live_.insert(block);
      statistics_.add(kAllocation, block->segment->small, 1);
      statistics_.add(kAllocatedBytes, block->segment->small, static_cast<int64_t>(block->size));
      if (block->size >= policy_.max_split) oversize_blocks_.add(block->segment->small, 1);
      continue;
    }
    if (block->address < wanted.address) {  // pages between the two were committed since
      remove_free(block);
      Block* rest = split_off(block, wanted.address - block->address);
      insert_free(block);
      insert_free(rest);
      block = rest;
    }
    allocate_from(block, wanted.size, wanted.size, stack, false, true);
  }
  block = first;
  for (const SavedBlock& wanted : saved) {
    if (!wanted.committed) continue;
    block = next_committed(block, wanted);
    if (wanted.live) {
      created->push_back(block);
    } else if (block->state == State::Live) {
      begin_free(block, free_stack);
    }
  }
}

}  // namespace forebay
