// The free blocks of one queue, kind and home, for best fit: the smallest that is large enough; of equal ones, that of
// the segment with the lowest rank, at the lowest address.
//
// Bins of nearly equal sizes, found through a bitmap; in each bin a treap in that order. A bin holds few blocks as a
// rule, so this is quicker than one tree over all, and it is still logarithmic when a bin holds many.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "pool/block.hpp"
#include "pool/policy.hpp"

namespace forebay {

struct Home;

class FreeList {
 public:
  FreeList(Home* home, bool small) : home(home), small(small) {}

  void insert(Block* block);
  void erase(Block* block);
  Block* best_fit(uint64_t size) const;
  Block* smallest() const;
  Block* next(const Block* block) const;  // the one behind it in the order, or null
  bool contains(const Block* block) const;
  Block* find(uint64_t size, uint64_t rank, uint64_t address) const;  // null: no such block is here
  size_t count() const { return count_; }

  Home* const home;
  const bool small;
  std::map<uint64_t, Block*> bare;  // pieces of growing segments that have no memory, by address
  std::map<std::pair<uint64_t, uint64_t>, Segment*> heaps;  // by what is available in one piece, and rank

 private:
  static constexpr unsigned kFine = 16;  // bins per doubling of the size
  static constexpr unsigned kBins = 64 * kFine;

  static unsigned bin_of(uint64_t size);
  unsigned next_used_bin(unsigned from) const;  // kBins when there is none
  Block* first_of(unsigned bin) const;

  std::array<Block*, kBins> roots_{};
  std::array<uint64_t, kBins / 64> used_{};
  size_t count_ = 0;
};

}  // namespace forebay
