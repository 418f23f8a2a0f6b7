// Blocks and segments. A segment is memory obtained from a device port; blocks tile a segment in address order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace forebay {

class FreeList;
struct Segment;

// The first three values equal those of snapshot/model.py. Uncommitted, Committing and Decommitting are page ranges of
// expandable segments: address space without memory, and ranges in transition, which no allocation may use. A Gap is
// the part of a heap that no buffer covers.
enum class State : uint8_t {
  Free = 0,
  Live = 1,
  PendingFree = 2,
  Uncommitted = 3,
  Committing = 4,
  Decommitting = 5,
  Gap = 6
};

// The fields that a free-list search and a neighbour check read come first: with a million blocks, each cache line is a
// miss.
struct alignas(64) Block {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t rank = 0;      // copy of the segment's rank
  Block* left = nullptr;  // children in the free list's treap
  Block* right = nullptr;
  Block* prev = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  uint32_t stack = 0;  // call stack of the allocation
  State state = State::Free;
  bool untouched = false;  // never allocated since the segment was adopted, so still zero if the port zeroes memory

  Segment* segment = nullptr;
  uint64_t requested = 0;
  std::vector<uint64_t> users;  // other queues whose work uses the block
  uint64_t serial = 0;          // key in the table of pending frees
  uint64_t freed_at = 0;        // the partition's request clock when the block became free
  void* owner = nullptr;        // of a live block, for the caller: restore() reports what becomes of it

  bool is_split() const { return prev != nullptr || next != nullptr; }
};

// The gaps between a heap's buffers, by size and address.
using Gaps = std::map<std::pair<uint64_t, uint64_t>, Block*>;

struct Segment {
  uint64_t address;
  uint64_t size;
  uint64_t queue;
  uint64_t rank;  // among equal free blocks, the one whose segment has the lowest rank is allocated first
  bool small;
  uint64_t page_size;  // of an expandable segment: the unit of commit and decommit; 0: all memory is always committed
  uint32_t stack;      // call stack of the reservation; 0 once its first block was split
  FreeList* free_list;
  Block* first;
  std::unique_ptr<Gaps> gaps = nullptr;  // of a heap

  bool expandable() const { return page_size != 0; }
  bool is_heap() const { return gaps != nullptr; }
  bool counts_splits() const { return !expandable() && !is_heap(); }  // only these appear in inactive_split
  uint64_t largest_gap() const { return gaps->empty() ? 0 : gaps->rbegin()->first.first; }
};

}  // namespace forebay
