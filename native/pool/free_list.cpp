#include "pool/free_list.hpp"

namespace forebay {
namespace {

bool precedes(const Block* a, const Block* b) {
  if (a->size != b->size) return a->size < b->size;
  if (a->rank != b->rank) return a->rank < b->rank;
  return a->address < b->address;
}

// The treap stores no priorities: a hash of the address is random enough and is the same in every run.
uint64_t priority(const Block* block) {
  uint64_t h = block->address * 0x9e3779b97f4a7c15u;
  return (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
}

void treap_split(Block* tree, const Block* at, Block** low, Block** high) {
  while (tree != nullptr) {
    if (precedes(tree, at)) {
      *low = tree;
      low = &tree->right;
      tree = tree->right;
    } else {
      *high = tree;
      high = &tree->left;
      tree = tree->left;
    }
  }
  *low = *high = nullptr;
}

Block* treap_join(Block* low, Block* high) {
  Block* root = nullptr;
  Block** here = &root;
  while (low != nullptr && high != nullptr) {
    if (priority(low) > priority(high)) {
      *here = low;
      here = &low->right;
      low = low->right;
    } else {
      *here = high;
      here = &high->left;
      high = high->left;
    }
  }
  *here = low != nullptr ? low : high;
  return root;
}

}  // namespace

unsigned FreeList::bin_of(uint64_t size) {
  const uint64_t quanta = size / kMinBlockSize;
  if (quanta < kBinsPerDoubling) return static_cast<unsigned>(quanta);
  const unsigned log = 63u - static_cast<unsigned>(__builtin_clzll(quanta));
  return (log - 3) * kBinsPerDoubling + static_cast<unsigned>((quanta >> (log - 4)) & (kBinsPerDoubling - 1));
}

unsigned FreeList::next_used_bin(unsigned from) const {
  if (from >= kBins) return kBins;
  unsigned word = from / 64;
  uint64_t bits = used_[word] & (~uint64_t{0} << (from % 64));
  while (bits == 0) {
    if (++word == used_.size()) return kBins;
    bits = used_[word];
  }
  return word * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
}

void FreeList::insert(Block* block) {
  const unsigned bin = bin_of(block->size);
  Block** here = &roots_[bin];
  if (*here == nullptr) {
    used_[bin / 64] |= uint64_t{1} << (bin % 64);
    block->left = block->right = nullptr;
  } else {
    const uint64_t mine = priority(block);
    while (*here != nullptr && priority(*here) >= mine)
      here = precedes(*here, block) ? &(*here)->right : &(*here)->left;
    treap_split(*here, block, &block->left, &block->right);
  }
  *here = block;
  ++count_;
}

void FreeList::erase(Block* block) {
  const unsigned bin = bin_of(block->size);
  Block** here = &roots_[bin];
  while (*here != block) here = precedes(*here, block) ? &(*here)->right : &(*here)->left;
  *here = treap_join(block->left, block->right);
  if (roots_[bin] == nullptr) used_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  --count_;
}

Block* FreeList::best_fit(uint64_t size) const {
  const unsigned bin = bin_of(size);
  Block* best = nullptr;
  for (Block* at = roots_[bin]; at != nullptr;) {
    if (at->size >= size) {
      best = at;
      at = at->left;
    } else {
      at = at->right;
    }
  }
  if (best != nullptr) return best;
  return first_of(next_used_bin(bin + 1));
}

Block* FreeList::smallest() const { return first_of(next_used_bin(0)); }

Block* FreeList::next(const Block* block) const {
  const unsigned bin = bin_of(block->size);
  Block* best = nullptr;
  for (Block* at = roots_[bin]; at != nullptr;) {
    if (precedes(block, at)) {
      best = at;
      at = at->left;
    } else {
      at = at->right;
    }
  }
  return best != nullptr ? best : first_of(next_used_bin(bin + 1));
}

Block* FreeList::first_of(unsigned bin) const {
  if (bin == kBins) return nullptr;
  Block* first = roots_[bin];
  while (first->left != nullptr) first = first->left;
  return first;
}

bool FreeList::contains(const Block* block) const { return find(block->size, block->rank, block->address) == block; }

Block* FreeList::find(uint64_t size, uint64_t rank, uint64_t address) const {
  Block wanted;
  wanted.size = size;
  wanted.rank = rank;
  wanted.address = address;
  Block* at = roots_[bin_of(size)];
  while (at != nullptr && (precedes(at, &wanted) || precedes(&wanted, at)))
    at = precedes(at, &wanted) ? at->right : at->left;
  return at;
}

}  // namespace forebay
