// Hands out blocks of the segments it was given. It touches its own tables only: no driver, no callback, no waiting.
//
// Whoever calls grows it (adopt), shrinks it (evict) and says when a block that other queues use is done (settle). A
// growing segment is address space, whose pages whoever calls brings and takes (growing.cpp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pool/block.hpp"
#include "pool/free_list.hpp"
#include "pool/history.hpp"
#include "pool/ledger.hpp"
#include "pool/live_table.hpp"
#include "pool/policy.hpp"
#include "base/ring.hpp"

namespace forebay {

// Where blocks of one purpose live, apart from all others: the common home, 0, or that of a graph or a user's pool.
struct Home {
  uint32_t number = 0;
  bool splits = true;
  bool waits = false;  // what is given back waits for its own queue, too
  std::array<std::map<uint64_t, std::unique_ptr<FreeList>>, 2> lists;  // of the large kind, of the small one; by queue
  std::array<uint64_t, 2> clock{};                                     // requests so far, where blocks grow old
  Tally reserved;
};

struct Evictable {
  uint64_t address, size, queue, age;
  bool growing;
};

struct Deferred {
  uint64_t serial;  // the number under which it waits
  uint32_t home;
  std::vector<uint64_t> uses;  // the queues that use it
};

struct Piece {
  Piece() = default;
  Piece(uint64_t address, uint64_t size) : address(address), size(size) {}

  uint64_t address = 0, size = 0;
};

struct Moving {
  uint64_t address, size;
  bool leaving;  // or coming
};

struct Nearest {
  uint64_t address, size;  // the smallest free buffer that is large enough, however large; 0: none is
  bool room;               // whether a heap has room for a new one
};

class Pool {
 public:
  static constexpr uint64_t kArrival = ~uint64_t{0};
  static constexpr uint64_t kAnyQueue = ~uint64_t{0};

  void set_policy(const Policy& policy);
  Policy policy() const;

  // Best fit among the free blocks of `queue` in that home; null when nothing fits.
  // `borrowed`: for others than the home is for, who take nothing there from growing segments (PyTorch's rule).
  Block* take(uint64_t nbytes, uint64_t queue, uint32_t stack = 0, uint32_t home = 0, bool borrowed = false);
  // Free again at once, or, when other queues use it, awaiting until `settle`. True: it waits. `stack` is for the
  // history; 0 tells it where the block was taken.
  bool give(Block* block, uint32_t stack = 0);
  void use(Block* block, uint64_t queue);
  // The same block under another request; false, and nothing changed, when it does not fit or would be mostly empty.
  bool resize(Block* block, uint64_t nbytes, uint32_t stack);
  Block* live_at(uint64_t address) const;  // null for any address that `take` did not give

  std::vector<Deferred> deferred();  // the blocks that began to wait, until `heard` of them
  void heard(uint64_t serial);       // and of all that waited before
  bool settle(uint64_t serial);      // false: none waits under that number (any more)

  // These throw std::invalid_argument for what is not aligned to kQuantum or overlaps another segment.
  // PyTorch ranks segments by arrival since 2.10, and by address before: then `rank` is the address.
  void adopt(uint64_t address, uint64_t size, uint64_t queue, bool small, uint32_t stack = 0, uint64_t rank = kArrival,
             uint32_t home = 0);
  // The same, for a request that is served from it in one go; null (and it is adopted) when that does not fit.
  Block* adopt_for(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue, uint32_t stack, uint32_t home);
  bool evict(uint64_t address);  // false: no such segment, or part of it is in use
  // Each wholly free segment of a home and kind, by queue and then in the order of its free list. With `growing`, those
  // as well that evict() does not take.
  // With `pieces`, also what is free in growing segments that are partly in use; of heaps then all free buffers
  // instead.
  std::vector<Evictable> evictable(bool small, uint32_t home = 0, bool growing = false, bool pieces = false) const;
  bool owns(uint64_t address) const;

  // Growing segments. Pieces on their way are nobody's, so whoever calls may take its time: `room` and `leave` choose
  // one, `came`, `left` and `stayed` say what came of it.
  void adopt_space(uint64_t address, uint64_t size, uint64_t page, uint64_t queue, bool small, uint32_t stack,
                   uint32_t home);
  // What must come for a request; nothing, at an address: the free block there serves, at 0: more space is needed.
  Piece room(uint64_t nbytes, uint64_t queue, uint32_t home);
  bool come(Piece piece);  // this and no other, for who follows a recording; false: not all of it is without memory
  // Null: it is not free any more, or another queue's or home's by now. Of kAnyQueue whoever's it is.
  Block* take_at(uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home);
  // Its memory is there. The block, if the request fits now.
  Block* came(uint64_t address, uint64_t nbytes, uint32_t stack);
  std::vector<Piece> idle_pages(bool small, uint32_t home) const;  // free, in the order of the free lists
  bool leave(Piece piece);                                         // false: not all of it is free any more
  bool left(uint64_t address);    // its memory is gone. True: so is all of its segment's
  void stayed(uint64_t address);  // it could not come, or go
  std::vector<Moving> on_the_way() const;
  bool evict_space(uint64_t address);

  // Heaps: segments tiled by whole buffers and the room between them. A free buffer keeps its size until it is
  // released.
  Block* place(uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home);  // a new one; null: no heap has room
  Nearest nearest(uint64_t nbytes, uint64_t queue, uint32_t home) const;
  uint64_t release(uint64_t address, uint64_t size);  // a free one becomes room; its heap, if that is empty now, else 0

  void make_home(uint32_t number, bool splits, bool waits = false);
  bool drop_home(uint32_t number);  // false: it has segments, or there is none. What it counted stays
  Count reserved_by(uint32_t home, Kind kind) const;
  std::vector<int64_t> reserved_by(uint32_t home) const;  // each kind's four numbers
  uint64_t idle_in(uint32_t home) const;                  // bytes in free blocks

  Count count(unsigned metric, unsigned kind) const;  // std::out_of_range for a Metric or Kind that is none
  std::vector<int64_t> counts() const;                // every Count, metric by metric, kind by kind
  Count oversize(bool segments) const;                // of max_split or more: blocks handed out, or segments
  std::vector<int64_t> oversize() const;              // the four numbers of both
  uint64_t begin_meter();
  std::vector<int64_t> meter(uint64_t number, bool end);  // Peaks; std::out_of_range for one that ended
  void reset_peaks();
  void reset_accumulated();

  // 0 stops and forgets. `stacks`: whether entries have any; `skip`: a bit for each action that is not noted; `keep`:
  // the newest of what was recorded before stay.
  void record(size_t most, bool stacks = true, uint32_t skip = 0, bool keep = false);
  void set_note(uint32_t note) { note_ = note; }  // what entries say from now on
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void note_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack, uint32_t home = 0);
  void note_look();                                     // somebody took a snapshot
  void note_block(const Block* block, uint32_t stack);  // somebody said something of it

  // Under the pool's lock, each segment with its blocks, by address; each entry of the history, oldest first.
  template <class OnSegment, class OnBlock>
  void walk(OnSegment on_segment, OnBlock on_block) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [address, segment] : segments_) {
      on_segment(segment);
      for (const Block* block = segment.first; block != nullptr; block = block->next) on_block(*block);
    }
  }
  std::vector<Entry> history(uint64_t* lost) const;

  const char* broken() const;  // check.cpp: the first rule that does not hold, or null

 private:
  friend struct PoolTest;  // native/tests, which break what broken() must find

  Home* home_of(uint32_t number);
  const Home* home_of(uint32_t number) const;
  FreeList* free_list(Home* home, uint64_t queue, bool small);
  bool plain() const { return policy_.max_split == kUnlimited && !policy_.ages && !policy_.heaps && growing_ == 0; }
  bool may_serve(uint64_t nbytes, uint64_t size) const {  // whether so much memory is enough
    return nbytes > 0 && nbytes < kMost && policy_.block_size(nbytes) <= size;
  }
  Block* fitting(FreeList* list, uint64_t size, bool growing);
  Block* buffer(FreeList* list, uint64_t size);
  Block* make_buffer(Segment* heap, uint64_t size);
  void settle_in(Block* block);  // all of a new segment
  Block* hand_out(Block* block, uint64_t size, uint64_t nbytes, uint32_t stack, bool growing);
  Block* install(uint64_t address, uint64_t size, uint64_t queue, uint32_t stack, uint64_t rank, FreeList* list,
                 uint64_t page);
  Block* new_block();
  void have_spares(int count);              // so that as many new_block() cannot fail
  Block* cut(Block* block, uint64_t size);  // makes what lies behind a block of its own, in the same state
  void list(Block* block);
  void unlist(Block* block);
  void drop(Block* block);
  void reclaim(Block* block);
  bool overlaps(uint64_t address, uint64_t size) const;  // with any segment; whoever asks holds the lock
  void merge(Block* into, Block* gone);
  Block* block_with(uint64_t address);  // in which the address lies
  Block* block_at(uint64_t address);    // which begins there
  void join_free(Block* block);
  void join_bare(Block* block);
  void reserve(const Segment& segment, int64_t change);
  void forget(Segment* segment);
  void push(Action action, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t home);

  mutable std::mutex mutex_;
  Policy policy_;
  bool plain_ = true;  // no rule but best fit chooses a block
  std::map<uint64_t, Segment> segments_;
  Home common_;
  std::unordered_map<uint32_t, std::unique_ptr<Home>> homes_;  // the others
  uint64_t adopted_ = 0;                                       // segments so far
  uint64_t growing_ = 0;                                       // growing ones, now
  LiveTable live_;
  std::unordered_map<uint64_t, Block*> awaiting_;  // by serial number, which no later block ever has
  std::vector<uint64_t> deferred_;
  uint64_t serials_ = 0;
  std::deque<Block> records_;
  Block* spare_ = nullptr;  // unused records, through `next`
  Ledger ledger_;
  Tally oversize_blocks_, oversize_segments_;
  std::unique_ptr<Ring<Entry>> ring_;
  std::atomic<bool> recording_{false};  // whether there is a ring, for those without the lock
  bool stacks_ = true;
  uint32_t skip_ = 0;
  std::atomic<uint32_t> note_{0};
};

}  // namespace forebay
