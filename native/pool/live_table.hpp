// Live blocks by their exact address: open addressing with linear probing, so that a free by address costs one look.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pool/block.hpp"
#include "pool/policy.hpp"

namespace forebay {

class LiveTable {
 public:
  LiveTable() : slots_(kFewest, nullptr) {}

  Block* find(uint64_t address) const {
    for (size_t at = home(address);; at = (at + 1) & mask()) {
      if (slots_[at] == nullptr || slots_[at]->address == address) return slots_[at];
    }
  }

  // For one more; insert() itself then cannot fail.
  void make_room() {
    if ((count_ + 1) * 2 > slots_.size()) grow();
  }

  void insert(Block* block) {
    make_room();
    ++count_;
    place(block);
  }

  void erase(const Block* block) {
    size_t hole = home(block->address);
    while (slots_[hole] != block) hole = (hole + 1) & mask();
    // Pull later ones of the same run back over the hole, so that no search stops short.
    for (size_t at = (hole + 1) & mask(); slots_[at] != nullptr; at = (at + 1) & mask()) {
      const size_t wish = home(slots_[at]->address);
      if (((at - wish) & mask()) >= ((at - hole) & mask())) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole] = nullptr;
    --count_;
  }

  size_t count() const { return count_; }

 private:
  static constexpr size_t kFewest = 64;

  size_t mask() const { return slots_.size() - 1; }
  size_t home(uint64_t address) const { return (address / kGrain * 0x9e3779b97f4a7c15u >> 20) & mask(); }

  void place(Block* block) {
    size_t at = home(block->address);
    while (slots_[at] != nullptr) at = (at + 1) & mask();
    slots_[at] = block;
  }

  void grow() {
    std::vector<Block*> old(slots_.size() * 2, nullptr);
    std::swap(old, slots_);
    for (Block* block : old) {
      if (block != nullptr) place(block);
    }
  }

  std::vector<Block*> slots_;
  size_t count_ = 0;
};

}  // namespace forebay
