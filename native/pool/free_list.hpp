// Best-fit free list of one queue, size class and partition: returns the smallest block that is large enough; among
// equal blocks, the one whose segment has the lowest rank, then the one with the lowest address.
//
// Implementation: a bitmap over bins of nearly equal sizes, and one treap per bin. A bin usually holds few blocks, so
// this is faster than one tree over all blocks, and it stays logarithmic when a bin holds many. A list of few blocks is
// one treap without bins, which take 8 KiB: a history may have thousands of queues.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "pool/block.hpp"
#include "pool/policy.hpp"

namespace forebay {

struct PoolPartition;

class FreeList {
 public:
  FreeList(PoolPartition* partition, bool small) : partition(partition), small(small) {}

  void insert(Block* block);
  void erase(Block* block);
  Block* best_fit(uint64_t size) const;
  Block* smallest() const;
  Block* next(const Block* block) const;  // the successor in list order, or null
  bool contains(const Block* block) const;
  Block* find(uint64_t size, uint64_t rank, uint64_t address) const;  // null if the list has no such block
  size_t count() const { return count_; }

  PoolPartition* const partition;
  const bool small;
  std::map<uint64_t, Block*> uncommitted;  // uncommitted ranges of expandable segments, by address
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, Segment*> heaps;  // by largest gap, rank, and address

 private:
  static constexpr unsigned kBinsPerDoubling = 16;
  static constexpr unsigned kBins = 64 * kBinsPerDoubling;
  static constexpr size_t kMaxWithoutBins = 4;

  struct Bins {
    std::array<Block*, kBins> roots{};
    std::array<uint64_t, kBins / 64> used{};
  };

  static unsigned bin_of(uint64_t size);
  unsigned next_used_bin(unsigned from) const;  // kBins if there is none
  Block* root_of(uint64_t size) const { return bins_ ? bins_->roots[bin_of(size)] : only_root_; }
  Block* first_after(uint64_t size) const;  // the smallest block in a bin after that of the size
  void make_bins();                         // unless there is no memory

  std::unique_ptr<Bins> bins_;
  Block* only_root_ = nullptr;  // if there are no bins
  size_t count_ = 0;
};

}  // namespace forebay
