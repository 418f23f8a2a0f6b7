// NumPy data allocator (NEP 49): serves malloc-style requests from a pool, in front of the previous allocator.
//
// Note [Arrays outlive their handler]
// NumPy has one handler for array data in each context, and no way to reach the others; so the functions of the default
// handler are replaced, and stay replaced. An array must be freed by the allocator that has allocated it, whichever
// handler is installed by then: memory is recognised by its address, and what is not the pool's is forwarded to the
// previous functions, also after `uninstall`, which only ends the allocation from the device. The size of foreign
// memory is known to its allocator alone. The usual request is small; it costs one comparison and a jump. Rejected:
// `malloc_usable_size`, which would read in front of blocks of other handlers; and a header in front of each array,
// which foreign memory has not.
// Test: tests/interop/test_numpy.py::test_uninstall_keeps_existing_arrays
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "numpy/array_sampler.hpp"
#include "pool/pool.hpp"

namespace forebay {

struct AllocatorFunctions {  // layout of NumPy's allocator struct
  void* ctx;
  void* (*malloc)(void* ctx, size_t size);
  void* (*calloc)(void* ctx, size_t count, size_t each);
  void* (*realloc)(void* ctx, void* memory, size_t size);
  void (*free)(void* ctx, void* memory, size_t size);
};

struct Handler {  // layout of NumPy's handler struct, version 1
  char name[127] = "forebay";
  uint8_t version = 1;
  AllocatorFunctions functions{};
};

// Requests that were forwarded to the previous allocator. `live` keeps the first size of reallocated memory after its
// free, as only that allocator knows it then, and is below 0 if memory of earlier arrays was freed.
struct ForwardedRequests {
  uint64_t count;
  uint64_t bytes;      // of requests, and by which reallocated memory grew: never less than the peak
  int64_t live, peak;  // peak: the maximum of live
};

class NumpyAllocator {
 public:
  // Allocates a block through the owner, when the pool has none or its history records call stacks. Null with
  // `refused`: out of memory; null without: not possible now, and the previous allocator serves the request.
  // Allocations that a thread makes during this call are not served.
  using AllocateFn = Block* (*)(void* owner, uint64_t queue, size_t size, bool* refused);

  // `queue` selects the free memory; it must be a queue without work, as freed memory is ordered after its queue's
  // work. `zero_pages`: the pool's memory is anonymous and private to the process, so new and discarded pages are zero.
  NumpyAllocator(Pool* pool, uint64_t queue, AllocateFn allocate, void* owner, bool zero_pages);
  NumpyAllocator(const NumpyAllocator&) = delete;
  NumpyAllocator& operator=(const NumpyAllocator&) = delete;

  // Returns the functions to install in place of `previous`. Throws std::invalid_argument if called twice.
  AllocatorFunctions install_over(const AllocatorFunctions& previous);
  void* owner() const { return owner_; }

  void set_serving(bool on);  // in this process
  bool serving() const;
  void set_smallest(size_t size) { smallest_ = size == 0 ? 1 : size; }
  size_t smallest() const { return smallest_.load(std::memory_order_relaxed); }
  ForwardedRequests forwarded() const;
  void reset_forwarded();

  // Sets `stack` to the caller's in the pool of the sample. False: not possible now, and the array is not recorded.
  using StackFn = bool (*)(void* owner, uint32_t* stack);
  // Samples the arrays of the previous allocator from now on; see Note [Sampled arrays]. `mean` 0 stops.
  void sample(Pool* pool, uint64_t mean, uint64_t seed, StackFn stack_of_caller);

 private:
  static void* malloc(void* ctx, size_t size);
  static void* calloc(void* ctx, size_t count, size_t each);
  static void* realloc(void* ctx, void* memory, size_t size);
  static void free(void* ctx, void* memory, size_t size);

  void* allocate_array(size_t size, bool zeroed);
  void* resize(Block* block, size_t size);
  void* reallocate_foreign(void* memory, size_t size);
  void release(void* memory, size_t size);
  Block* allocate_block(size_t size, bool* refused);
  void* forward(size_t size, bool zeroed);
  void add_sample(void* memory, size_t size);
  void widen_range(uint64_t address);
  // Plain additions, as NumPy holds the interpreter's lock; atomic ones cost 10 ns more. Without the lock some are
  // lost.
  template <typename T>
  static T add(std::atomic<T>& counter, T amount) {
    const T sum = counter.load(std::memory_order_relaxed) + amount;
    counter.store(sum, std::memory_order_relaxed);
    return sum;
  }
  void count_forwarded(size_t size) {
    add<uint64_t>(count_, 1);
    add<uint64_t>(bytes_, size);
    change_live(static_cast<int64_t>(size));
  }
  void count_reallocated(void* before, void* after, size_t size);
  void change_live(int64_t amount) {
    const int64_t live = add<int64_t>(live_, amount);
    if (live > peak_.load(std::memory_order_relaxed)) peak_.store(live, std::memory_order_relaxed);
  }
  void free_forwarded(void* memory, size_t size) {
    if (sampler_.may_have(memory)) [[unlikely]]
      sampler_.remove(memory);  // before another thread gets the address
    add<int64_t>(live_, -static_cast<int64_t>(size));
    previous_.free(previous_.ctx, memory, size);
  }
  Block* own_block(void* memory) const { return in_range(memory) ? pool_->live_at(address_of(memory)) : nullptr; }
  bool in_range(void* memory) const {
    const uint64_t low =
        low_.load(std::memory_order_relaxed);  // relaxed: malloc() happens before free(), on any thread
    return address_of(memory) - low <= high_.load(std::memory_order_relaxed) - low;
  }
  static uint64_t address_of(void* memory) { return reinterpret_cast<uintptr_t>(memory); }

  // Fields that a small request reads, in one cache line.
  alignas(64) AllocatorFunctions previous_{};
  std::atomic<size_t> smallest_{1};
  std::atomic<uint64_t> low_{~uint64_t{0}}, high_{0};  // range of all addresses ever served

  alignas(64) std::atomic<uint64_t> count_{0}, bytes_{0};  // see ForwardedRequests
  std::atomic<int64_t> live_{0}, peak_{0};
  std::atomic<void*> reallocated_{nullptr};  // the last memory that the previous allocator reallocated, and its size
  std::atomic<size_t> reallocated_size_{0};

  ArraySampler sampler_;
  StackFn stack_of_caller_ = nullptr;

  Pool* const pool_;
  const uint64_t queue_;
  const AllocateFn allocate_;
  void* const owner_;
  const bool zero_pages_;
  std::atomic<uint64_t> serving_generation_{0};  // see fork_generation(); 0 while not serving
};

}  // namespace forebay
