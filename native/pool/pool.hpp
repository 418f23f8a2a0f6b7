// Pool of memory blocks: allocates from the segments it was given.
//
// Note [Pools call nothing]
// A pool changes its own tables only: it makes no driver call, runs no callback and never waits, so that no lock is
// held across Python or a driver (Note [The GIL is the mutex of pools]), and so that it can be tested, replayed and
// fuzzed without a device. `try_allocate` returns a block or nothing, and Python decides what happens then (Note
// [Recovery steps]). Each operation allocates the host memory that it needs (a record for a split remainder, a slot of
// a table) before it changes anything: std::bad_alloc leaves the pool as it was; memory that it was given with the
// request may stay, as a free block. Rejected: a callback that reserves memory, in which the tables would be half
// changed.
// Test: native/tests/test_pool.cpp::operations_without_memory_change_nothing
//
// The caller adds segments (adopt), removes them (evict) and reports when the queues that use a freed block are done
// with it (complete_free). An expandable segment is address space whose pages the caller commits and decommits
// (expandable.cpp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ring.hpp"
#include "pool/block.hpp"
#include "pool/free_list.hpp"
#include "pool/history.hpp"
#include "pool/live_table.hpp"
#include "pool/policy.hpp"
#include "pool/pool_mutex.hpp"
#include "pool/stacks.hpp"
#include "pool/statistics.hpp"

namespace forebay {

// Segments whose blocks serve one purpose only: the default pool (number 0), or the private pool of a graph or of
// a user.
struct PoolPartition {
  uint32_t pool_number = 0;
  bool allows_splits = true;
  bool defers_frees = false;  // a freed block is pending until its own queue has reached the free, too
  std::array<std::map<uint64_t, std::unique_ptr<FreeList>>, 2> lists;  // of the large and the small class, by queue
  std::array<uint64_t, 2> clock{};                                     // requests so far, if the policy tracks age
  Counter reserved;
};

struct Evictable {
  uint64_t address, size, queue, age;
  bool expandable;
  uint64_t freed_at;  // as Block::freed_at
};

// A freed block that other queues still use.
struct DeferredFree {
  uint64_t serial;
  uint32_t pool_number;
  std::vector<uint64_t> users;  // the queues
  uint64_t queue;               // of its segment
};

struct PageRange {
  PageRange() = default;
  PageRange(uint64_t address, uint64_t size) : address(address), size(size) {}

  uint64_t address = 0, size = 0;
};

struct PageTransition {
  uint64_t address, size;
  bool decommitting;  // else committing
};

struct BestFitBuffer {
  uint64_t address, size;  // the smallest free buffer that is large enough, regardless of its excess; size 0: none
  bool has_gap;            // a heap has a gap for a new buffer
};

struct SavedBlock {
  uint64_t address, size;
  bool live, committed;
};

using Checkpoint = std::vector<std::vector<SavedBlock>>;  // the blocks of a partition at one moment, by segment

struct Restored {
  struct Moved {
    void* owner;
    Block* block;
  };

  std::vector<Moved> moved;       // owners of blocks that were live, with their blocks now, or null
  std::vector<uint64_t> unowned;  // addresses of live blocks without an owner
  bool pending = false;           // some frees are pending
};

class Pool {
 public:
  static constexpr uint64_t kNextRank = ~uint64_t{0};
  static constexpr uint64_t kAnyQueue = ~uint64_t{0};

  void set_policy(const Policy& policy);
  Policy policy() const;

  // Allocates the best-fitting free block of the queue in that partition; null if no block fits.
  // `borrowed`: the request belongs to another partition; it gets no block of an expandable segment (PyTorch's rule).
  Block* try_allocate(uint64_t nbytes, uint64_t queue, uint32_t stack = 0, uint32_t pool_number = 0,
                      bool borrowed = false);
  // Frees the block immediately, or leaves it pending until `complete_free` if other queues use it. Returns true if it
  // is pending. `stack` is for the history; 0 records the stack of the allocation.
  bool free(Block* block, uint32_t stack = 0);
  void record_stream(Block* block, uint64_t queue);
  // Changes the requested size in place. Returns false, without effect, if the request does not fit the block or would
  // leave most of it unused.
  bool resize(Block* block, uint64_t nbytes, uint32_t stack);
  Block* live_at(uint64_t address) const;  // null unless a live block begins there

  std::vector<DeferredFree> deferred();        // pending frees that were not yet acknowledged
  void acknowledge_deferred(uint64_t serial);  // this one and all earlier ones
  // Returns false if no free with that serial is pending. A `stack` here and below is that of the caller that released
  // the memory, for the history; 0 records the block's or segment's own.
  bool complete_free(uint64_t serial, uint32_t stack = 0);

  // All adopt functions throw std::invalid_argument if the segment is misaligned (kMinBlockSize) or overlaps another.
  // PyTorch ranks segments by arrival since 2.10, and by address before: then `rank` is the address.
  void adopt(uint64_t address, uint64_t size, uint64_t queue, bool small, uint32_t stack = 0, uint64_t rank = kNextRank,
             uint32_t pool_number = 0);
  // Adopts a segment and allocates from it atomically. Returns null, with the segment adopted, if the request does not
  // fit.
  Block* adopt_and_allocate(uint64_t nbytes, uint64_t address, uint64_t size, uint64_t queue, uint32_t stack,
                            uint32_t pool_number);
  bool evict(uint64_t address, uint32_t stack = 0);  // false if there is no such segment or part of it is in use
  // Lists the wholly free segments of a partition and size class, by queue and then in free-list order.
  // `expandable` adds wholly free expandable segments and heaps, which evict() refuses. `parts` adds the free blocks of
  // expandable segments that are partly in use; of heaps it lists the free buffers instead.
  std::vector<Evictable> evictable(bool small, uint32_t pool_number = 0, bool expandable = false,
                                   bool parts = false) const;
  bool owns(uint64_t address) const;

  // Expandable segments. A range in transition cannot be allocated, so the caller may commit or decommit it without a
  // lock: `choose_pages`, `begin_commit` and `begin_decommit` start a transition; `commit_done`, `decommit_done` and
  // `rollback` end it.
  void adopt_expandable(uint64_t address, uint64_t size, uint64_t page_size, uint64_t queue, bool small,
                        uint32_t pool_number);
  // Returns the range to commit for a request. Size 0: the free block at the address suffices; address 0 as well: more
  // address space is needed.
  PageRange choose_pages(uint64_t nbytes, uint64_t queue, uint32_t pool_number);
  bool begin_commit(PageRange range);  // exactly this range, for the replay of a history; false unless all uncommitted
  // Allocates from the free block at an address. Null if it is no longer free or, unless kAnyQueue is given, belongs to
  // another queue or partition.
  Block* allocate_at(uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack, uint32_t pool_number);
  // Marks the range as committed, and allocates from it if the request fits.
  Block* commit_done(uint64_t address, uint64_t nbytes, uint32_t stack);
  std::vector<PageRange> idle_pages(bool small, uint32_t pool_number) const;  // whole free pages, in free-list order
  bool begin_decommit(PageRange range);                                       // false unless all of it is free
  bool decommit_done(uint64_t address, uint32_t stack = 0);  // true if its whole segment is uncommitted
  void rollback(uint64_t address);                           // the transition failed
  std::vector<PageTransition> page_transitions() const;
  bool evict_expandable(uint64_t address);

  // Heaps: segments tiled by buffers and the gaps between them. A free buffer keeps its size until it is released.
  Block* new_buffer(uint64_t nbytes, uint64_t queue, uint32_t stack,
                    uint32_t pool_number);  // null if no heap has a gap
  BestFitBuffer best_fit_buffer(uint64_t nbytes, uint64_t queue, uint32_t pool_number) const;
  // Turns a free buffer into a gap. Returns the address of its heap if the heap is now empty, else 0.
  uint64_t release_buffer(uint64_t address, uint64_t size);

  // Checkpoints (checkpoint.cpp). `restore` frees all blocks of the partition and makes those live that were live at
  // the checkpoint, in PyTorch's sequence of allocations and frees. Segments that were adopted since keep their memory.
  // Both throw std::runtime_error, without any effect, if a block is pending or its memory was released.
  Checkpoint checkpoint(uint32_t pool_number) const;
  Restored restore(uint32_t pool_number, const Checkpoint& saved, uint32_t stack, uint32_t free_stack);
  std::vector<uint64_t> live_addresses(uint32_t pool_number) const;

  void create_pool(uint32_t pool_number, bool allows_splits, bool defers_frees = false);
  // Returns false if the partition is unknown or has segments. Its statistics are kept.
  bool remove_pool(uint32_t pool_number);
  std::vector<uint32_t> pools_with_segments() const;  // in ascending order; may include the default one
  Stat reserved_by(uint32_t pool_number, SizeClass size_class) const;
  std::vector<int64_t> reserved_by(uint32_t pool_number) const;  // the four numbers of each size class
  uint64_t free_bytes(uint32_t pool_number) const;

  Stat count(unsigned metric, unsigned size_class) const;  // std::out_of_range for an invalid Metric or SizeClass
  std::vector<int64_t> counts() const;                     // every Stat, by metric and then size class
  Stat oversize(bool segments) const;                      // of max_split or more: live blocks, or segments
  std::vector<int64_t> oversize() const;                   // the four numbers of both
  uint64_t begin_meter();
  std::vector<int64_t> meter(uint64_t number, bool end);  // MeterPeaks; std::out_of_range if the meter has ended
  void reset_peaks();
  void reset_accumulated();

  // Records up to `capacity` entries; 0 stops recording and clears the history. `stacks`: entries carry stacks; `skip`:
  // a bit for each action that is not recorded; `keep`: retain the newest entries of the previous recording.
  void record_history(size_t capacity, bool stacks = true, uint32_t skip = 0, bool keep = false);
  void set_note(uint32_t note) { note_ = note; }  // of the following entries
  // Removes the stacks from the table that no block or segment has, and renumbers the others. The history must be
  // empty.
  void compact_stacks(StackTable* stacks);
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void record_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack, uint32_t pool_number = 0);
  void record_snapshot_event(uint32_t pool_number = 0, uint64_t nbytes = 0);  // 0: all pools
  void record_annotation(const Block* block, uint32_t stack);

  // Visits each segment and its blocks by address, under the pool's lock.
  template <class OnSegment, class OnBlock>
  void walk(OnSegment on_segment, OnBlock on_block) const {
    PoolLock lock(mutex_);
    for (const auto& [address, segment] : segments_) {
      on_segment(segment);
      for (const Block* block = segment.first; block != nullptr; block = block->next) on_block(*block);
    }
  }
  std::vector<Entry> history(uint64_t* lost) const;  // oldest entry first

  const char* check_invariants() const;  // invariants.cpp: the first violated invariant, or null

 private:
  friend struct PoolTest;  // native/tests: corrupts tables that check_invariants() must report

  PoolPartition* find_partition(uint32_t pool_number);
  const PoolPartition* find_partition(uint32_t pool_number) const;
  PoolPartition* partition_or_default(uint32_t pool_number);
  FreeList* free_list(PoolPartition* partition, uint64_t queue, bool small);
  bool is_best_fit_only() const {
    return policy_.max_split == kUnlimited && !policy_.track_age && !policy_.heaps && expandable_segments_ == 0;
  }
  bool fits(uint64_t nbytes, uint64_t size) const {
    return nbytes > 0 && nbytes < kMaxRequest && policy_.block_size(nbytes) <= size;
  }
  Block* find_block(FreeList* list, uint64_t size, bool expandable);
  Block* find_buffer(FreeList* list, uint64_t size);
  Block* carve_buffer(Segment* heap, uint64_t size);
  void list_new_segment(Block* block);
  Block* allocate_from(Block* block, uint64_t size, uint64_t nbytes, uint32_t stack, bool expandable,
                       bool exact = false);
  bool begin_free(Block* block, uint32_t stack);  // free(), with the lock held
  std::vector<const Segment*> segments_in_order(uint32_t pool_number) const;
  void check_restorable(uint32_t pool_number, const Checkpoint& saved) const;
  void restore_segment(const std::vector<SavedBlock>& saved, uint32_t stack, uint32_t free_stack,
                       std::vector<Block*>* created);
  Block* create_segment(uint64_t address, uint64_t size, uint64_t queue, uint32_t stack, uint64_t rank, FreeList* list,
                        uint64_t page_size);
  Block* new_record();
  void ensure_spares(int count);                  // makes this many calls of new_record() unable to fail
  Block* split_off(Block* block, uint64_t size);  // turns what follows `size` bytes into a block with the same state
  void insert_free(Block* block);
  void remove_free(Block* block);
  void recycle(Block* block);
  void finish_free(Block* block, uint32_t stack);
  bool overlaps(uint64_t address, uint64_t size) const;  // with any segment; the caller holds the lock
  void absorb(Block* into, Block* neighbour);
  Block* block_containing(uint64_t address);
  Block* block_at(uint64_t address);  // that begins at the address
  void coalesce_free(Block* block);
  void coalesce_uncommitted(Block* block);
  void count_reserved(const Segment& segment, int64_t change);
  void erase_segment(Segment* segment);
  void record_event(Action action, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack,
                    uint32_t pool_number);

  mutable PoolMutex mutex_;
  Policy policy_;
  bool best_fit_only_ = true;  // cached is_best_fit_only(): no rule but best fit selects a block
  std::map<uint64_t, Segment> segments_;
  PoolPartition default_partition_;
  std::unordered_map<uint32_t, std::unique_ptr<PoolPartition>> partitions_;  // all but the default one
  uint64_t adopted_segments_ = 0;                                            // so far
  uint64_t expandable_segments_ = 0;                                         // now
  LiveTable live_;
  std::unordered_map<uint64_t, Block*> pending_frees_;  // by serial, which is never reused
  std::vector<uint64_t> deferred_;                      // serials that were not yet acknowledged
  uint64_t last_serial_ = 0;
  std::deque<Block> records_;
  Block* spare_records_ = nullptr;  // unused records, linked by `next`
  Statistics statistics_;
  Counter oversize_blocks_, oversize_segments_;
  std::unique_ptr<Ring<Entry>> ring_;
  std::atomic<bool> recording_{false};  // true if `ring_` is set; readable without the lock
  bool stacks_ = true;
  uint32_t skip_ = 0;
  std::atomic<uint32_t> note_{0};
};

}  // namespace forebay
