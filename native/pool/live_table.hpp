// Hash table of live blocks by exact address: open addressing with linear probing, so that freeing an address costs one
// lookup.
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
  LiveTable() : slots_(kMinSlots, nullptr) {}

  Block* find(uint64_t address) const {
    for (size_t at = home_slot(address);; at = (at + 1) & mask()) {
      if (slots_[at] == nullptr || slots_[at]->address == address) return slots_[at];
    }
  }

  // Makes the next calls of insert() unable to fail.
  void reserve_slots(size_t calls) {
    while ((count_ + calls) * 2 > slots_.size()) grow();
  }

  // A call of reserve_slots() must precede.
  void insert(Block* block) {
    ++count_;
    put(block);
  }

  void erase(const Block* block) {
    size_t hole = home_slot(block->address);
    while (slots_[hole] != block) hole = (hole + 1) & mask();
    // Move later entries of the probe run back over the hole, so that no search stops early.
    for (size_t at = (hole + 1) & mask(); slots_[at] != nullptr; at = (at + 1) & mask()) {
      const size_t wanted = home_slot(slots_[at]->address);
      if (((at - wanted) & mask()) >= ((at - hole) & mask())) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole] = nullptr;
    --count_;
  }

  size_t count() const { return count_; }

 private:
  static constexpr size_t kMinSlots = 64;

  size_t mask() const { return slots_.size() - 1; }
  size_t home_slot(uint64_t address) const { return (address / kMinAlignment * 0x9e3779b97f4a7c15u >> 20) & mask(); }

  void put(Block* block) {
    size_t at = home_slot(block->address);
    while (slots_[at] != nullptr) at = (at + 1) & mask();
    slots_[at] = block;
  }

  void grow() {
    std::vector<Block*> old(slots_.size() * 2, nullptr);
    std::swap(old, slots_);
    for (Block* block : old) {
      if (block != nullptr) put(block);
    }
  }

  std::vector<Block*> slots_;
  size_t count_ = 0;
};

}  // namespace forebay
