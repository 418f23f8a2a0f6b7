// A segment is memory taken from a port; a block is a piece of one. Blocks tile their segment in address order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace forebay {

class FreeList;
struct Segment;

// The first three as snapshot/model.py. Then pieces of growing segments: address space without memory, and on the way
// to and from having some, when nobody else may touch them. Room is what no buffer of a heap has.
enum class State : uint8_t { Free = 0, Live = 1, Awaiting = 2, Bare = 3, Coming = 4, Leaving = 5, Room = 6 };

// First what a search among the free blocks, and a look at a neighbour, reads: where a million blocks live each cache
// line is a miss.
struct alignas(64) Block {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t rank = 0;      // its segment's
  Block* left = nullptr;  // children in the free list's tree
  Block* right = nullptr;
  Block* prev = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  uint32_t stack = 0;  // where it was taken
  State state = State::Free;
  bool untouched = false;  // never handed out since its segment came, so still all zero where the port zeroes

  Segment* segment = nullptr;
  uint64_t requested = 0;
  std::vector<uint64_t> uses;  // other queues that work on it
  uint64_t serial = 0;         // the number under which it awaits them
  uint64_t born = 0;           // its home's clock when it became free

  bool split() const { return prev != nullptr || next != nullptr; }
};

// The room between a heap's buffers, by size and address.
using Rooms = std::map<std::pair<uint64_t, uint64_t>, Block*>;

struct Segment {
  uint64_t address;
  uint64_t size;
  uint64_t queue;
  uint64_t rank;  // of equal free blocks, one of the segment with the lowest goes first
  bool small;
  uint64_t page;   // a growing segment's: memory comes and goes in multiples of it. 0: all of it is there
  uint32_t stack;  // where it was reserved
  FreeList* free_list;
  Block* first;
  std::unique_ptr<Rooms> rooms = nullptr;  // of a heap

  bool growing() const { return page != 0; }
  bool heap() const { return rooms != nullptr; }
  bool splits() const { return !growing() && !heap(); }  // pieces of its blocks are counted
  uint64_t available() const { return rooms->empty() ? 0 : rooms->rbegin()->first.first; }  // of a heap, in one piece
};

}  // namespace forebay
