#include "pool/free_list.hpp"

#include <new>

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

void treap_insert(Block** here, Block* block) {
  const uint64_t mine = priority(block);
  while (*here != nullptr && priority(*here) >= mine) here = precedes(*here, block) ? &(*here)->right : &(*here)->left;
  treap_split(*here, block, &block->left, &block->right);
  *here = block;
}

void treap_erase(Block** here, const Block* block) {
  while (*here != block) here = precedes(*here, block) ? &(*here)->right : &(*here)->left;
  *here = treap_join(block->left, block->right);
}

Block* first_in(Block* tree) {
  while (tree != nullptr && tree->left != nullptr) tree = tree->left;
  return tree;
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
  const auto& used = bins_->used;
  unsigned word = from / 64;
  uint64_t bits = used[word] & (~uint64_t{0} << (from % 64));
  while (bits == 0) {
    if (++word == used.size()) return kBins;
    bits = used[word];
  }
  return word * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
}

void FreeList::make_bins() {
  bins_.reset(new (std::nothrow) Bins);
  if (!bins_) return;
  count_ = 0;
  while (Block* const block = only_root_) {
    only_root_ = treap_join(block->left, block->right);
    insert(block);
  }
}

void FreeList::insert(Block* block) {
  if (!bins_ && count_ == kMaxWithoutBins) make_bins();
  ++count_;
  if (!bins_) return treap_insert(&only_root_, block);
  const unsigned bin = bin_of(block->size);
  Block** const root = &bins_->roots[bin];
  if (*root != nullptr) return treap_insert(root, block);
  bins_->used[bin / 64] |= uint64_t{1} << (bin % 64);
  block->left = block->right = nullptr;
  *root = block;
}

void FreeList::erase(Block* block) {
  --count_;
  if (!bins_) return treap_erase(&only_root_, block);
  const unsigned bin = bin_of(block->size);
  treap_erase(&bins_->roots[bin], block);
  if (bins_->roots[bin] == nullptr) bins_->used[bin / 64] &= ~(uint64_t{1} << (bin % 64));
}

Block* FreeList::best_fit(uint64_t size) const {
  Block* best = nullptr;
  for (Block* at = root_of(size); at != nullptr;) {
    if (at->size >= size) {
      best = at;
      at = at->left;
    } else {
      at = at->right;
    }
  }
  return best != nullptr ? best : first_after(size);
}

Block* FreeList::smallest() const {
  if (!bins_) return first_in(only_root_);
  const unsigned bin = next_used_bin(0);
  return bin == kBins ? nullptr : first_in(bins_->roots[bin]);
}

Block* FreeList::next(const Block* block) const {
  Block* best = nullptr;
  for (Block* at = root_of(block->size); at != nullptr;) {
    if (precedes(block, at)) {
      best = at;
      at = at->left;
    } else {
      at = at->right;
    }
  }
  return best != nullptr ? best : first_after(block->size);
}

Block* FreeList::first_after(uint64_t size) const {
  if (!bins_) return nullptr;  // one treap has all sizes
  const unsigned bin = next_used_bin(bin_of(size) + 1);
  return bin == kBins ? nullptr : first_in(bins_->roots[bin]);
}

bool FreeList::contains(const Block* block) const { return find(block->size, block->rank, block->address) == block; }

Block* FreeList::find(uint64_t size, uint64_t rank, uint64_t address) const {
  Block wanted;
  wanted.size = size;
  wanted.rank = rank;
  wanted.address = address;
  Block* at = root_of(size);
  while (at != nullptr && (precedes(at, &wanted) || precedes(&wanted, at)))
    at = precedes(at, &wanted) ? at->right : at->left;
  return at;
}

}  // namespace forebay
