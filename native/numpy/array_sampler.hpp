// Sample of the arrays that the previous allocator serves, which are too many to record each.
//
// Note [Sampled arrays]
// A program allocates millions of small arrays, and a stack for each would cost more than the arrays. One byte in
// `mean` is chosen, at distances with an exponential distribution (a Poisson process, as heap profilers have it), and
// the array that contains it is recorded. An array of s bytes is chosen with the probability p = 1 - exp(-s / mean), so
// it counts as s / p bytes, and the expected sum over any set of arrays, such as those of one line, is their true size.
// The history has the usual form: each chosen array is a segment of its own of s / p bytes, at the next unused address
// of a pool that has no memory, so that all analyses work. The request subtracts and compares; the free reads one slot
// of a hash table that is at most a quarter full. Rejected: every n-th array, whose error is unbounded if sizes
// alternate; a header in front of each chosen array, as frees would read memory of other handlers; and entries in the
// history of the device, whose blocks are exact and whose statistics the program reads.
// Test: tests/interop/test_array_samples.py::test_estimates_of_two_sites_are_within_their_error
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pool/pool.hpp"
#include "pool/pool_mutex.hpp"

namespace forebay {

class ArraySampler {
 public:
  ArraySampler();
  ArraySampler(const ArraySampler&) = delete;
  ArraySampler& operator=(const ArraySampler&) = delete;

  // Starts anew with blocks in `pool`, which has no others; what was sampled before is forgotten. `mean` 0 stops.
  void start(Pool* pool, uint64_t mean, uint64_t seed);
  bool sampling() const { return mean_ != 0; }

  // Returns true if an array of this size is chosen. A plain subtraction, as the counters of the NumPy allocator:
  // without the interpreter's lock, some bytes may count twice or never.
  bool choose(size_t size) {
    const int64_t left = left_.load(std::memory_order_relaxed) - static_cast<int64_t>(size);
    left_.store(left, std::memory_order_relaxed);
    return left < 0;
  }
  void draw();  // the distance to the next chosen byte, after each choice

  // Records a chosen array with a stack of the pool.
  void add(void* memory, size_t size, uint32_t stack);
  // Returns false if the array was certainly not chosen: then nothing is to be removed.
  bool may_have(void* memory) const {
    const Table* table = table_.load(std::memory_order_acquire);
    return table->slots[table->home_slot(memory)].memory.load(std::memory_order_relaxed) != nullptr;
  }
  void remove(void* memory);  // records its free; without effect if it was not chosen

 private:
  struct Slot {
    std::atomic<void*> memory{nullptr};
    Block* block = nullptr;
  };
  struct Table {
    explicit Table(size_t size) : slots(size) {}
    size_t mask() const { return slots.size() - 1; }
    size_t home_slot(const void* memory) const {
      return (reinterpret_cast<uintptr_t>(memory) / 16 * 0x9e3779b97f4a7c15u >> 32) & mask();
    }
    void put(void* memory, Block* block);
    Slot* find(const void* memory);
    void erase(Slot* found);

    std::vector<Slot> slots;
  };

  void grow();
  double next_random();

  std::atomic<int64_t> left_;
  std::atomic<Table*> table_;

  PoolMutex mutex_;
  std::vector<std::unique_ptr<Table>> tables_;  // all that there were, as another thread may still read in an older one
  size_t count_ = 0;
  Pool* pool_ = nullptr;
  uint64_t mean_ = 0, random_ = 0, next_address_ = 0;
};

}  // namespace forebay
