// Hands out blocks of the segments it was given. It touches its own tables only: no driver, no callback, no waiting.
//
// Whoever calls grows it (adopt), shrinks it (evict) and says when a block that other queues use is done (settle).
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

#include "block.hpp"
#include "free_list.hpp"
#include "ledger.hpp"
#include "live_table.hpp"
#include "ring.hpp"

namespace penstock {

class Pool {
 public:
  static constexpr uint64_t kArrival = ~uint64_t{0};

  // Best fit among the free blocks of `queue`; null when nothing fits.
  Block* take(uint64_t nbytes, uint64_t queue, uint32_t stack = 0);
  // Free again at once, or, when other queues use it, awaiting until `settle`. True: it waits.
  bool give(Block* block);
  void use(Block* block, uint64_t queue);
  // The same block under another request; false, and nothing changed, when it does not fit or would be mostly empty.
  bool resize(Block* block, uint64_t nbytes, uint32_t stack);
  Block* live_at(uint64_t address) const;  // null for any address that `take` did not give

  // The blocks that began to wait since the last call: a serial number, and the queues that use it.
  std::vector<std::pair<uint64_t, std::vector<uint64_t>>> deferred();
  bool settle(uint64_t serial);  // false: none waits under that number (any more)

  // std::invalid_argument for what is not aligned to kQuantum or overlaps another segment.
  // PyTorch ranks segments by arrival since 2.10, and by address before: then `rank` is the address.
  void adopt(uint64_t address, uint64_t size, uint64_t queue, bool small, uint32_t stack = 0, uint64_t rank = kArrival);
  bool evict(uint64_t address);                                  // false: no such segment, or part of it is in use
  std::vector<std::pair<uint64_t, uint64_t>> evictable() const;  // address and size of each wholly free segment
  bool owns(uint64_t address) const;
  uint64_t largest_free() const;
  uint64_t largest_free(uint64_t queue) const;
  uint64_t largest_free(uint64_t queue, bool small) const;

  Count count(unsigned metric, unsigned kind) const;  // std::out_of_range for a Metric or Kind that is none
  std::vector<int64_t> counts() const;                // every Count, metric by metric, kind by kind
  void reset_peaks();
  void reset_accumulated();

  void record(size_t most);  // 0 stops and forgets
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void note_oom(uint64_t nbytes, uint64_t queue, uint64_t free, uint32_t stack);

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
  friend struct PoolTest;  // native/tests/test_pool.cpp, which breaks what broken() must find

  using FreeLists = std::unordered_map<uint64_t, std::unique_ptr<FreeList>>;  // by queue

  FreeList* free_list(uint64_t queue, bool small);
  Block* new_block();
  void drop(Block* block);
  void reclaim(Block* block);
  bool overlaps(uint64_t address, uint64_t size) const;  // with any segment; whoever asks holds the lock
  void merge(Block* into, Block* gone);
  void push(Action action, uint64_t address, uint64_t nbytes, uint64_t queue, uint32_t stack);

  mutable std::mutex mutex_;
  std::map<uint64_t, Segment> segments_;
  std::array<FreeLists, 2> free_lists_;  // of the large kind, of the small one
  uint64_t adopted_ = 0;                 // segments so far
  LiveTable live_;
  std::unordered_map<uint64_t, Block*> awaiting_;  // by serial number, which no later block ever has
  std::vector<uint64_t> deferred_;
  uint64_t serials_ = 0;
  std::deque<Block> records_;
  Block* spare_ = nullptr;  // unused records, through `next`
  Ledger ledger_;
  std::unique_ptr<Ring> ring_;
  std::atomic<bool> recording_{false};  // whether there is a ring, for those without the lock
};

}  // namespace penstock
