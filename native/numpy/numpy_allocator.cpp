#include "numpy/numpy_allocator.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/process.hpp"
#include "pool/policy.hpp"

namespace forebay {
namespace {

// From this size on glibc maps each array separately. It is then cheaper (measurements: docs/design/
// numpy-allocations.md) to let the kernel provide zero pages and to move an array of the previous allocator into the
// pool when it grows; smaller arrays grow in place.
constexpr size_t kMapThreshold = size_t{32} << 20;

thread_local bool in_callback = false;

void zero(void* memory, size_t nbytes, [[maybe_unused]] bool zero_pages) {
#ifdef __linux__  // elsewhere madvise() does not guarantee zero pages
  if (zero_pages && nbytes >= kMapThreshold) {
    const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(memory), end = begin + nbytes;
    const uintptr_t first = (begin + page_size - 1) / page_size * page_size, last = end / page_size * page_size;
    void* const whole_pages = reinterpret_cast<void*>(first);
    // MADV_REMOVE zeroes shared mappings, MADV_DONTNEED private ones.
    if (madvise(whole_pages, last - first, MADV_REMOVE) == 0 ||
        madvise(whole_pages, last - first, MADV_DONTNEED) == 0) {
      memset(memory, 0, first - begin);
      memset(reinterpret_cast<void*>(last), 0, end - last);
      return;
    }
  }
#endif
  memset(memory, 0, nbytes);
}

void* memory_of(const Block* block) { return reinterpret_cast<void*>(block->address); }

}  // namespace

NumpyAllocator::NumpyAllocator(Pool* pool, uint64_t queue, AllocateFn allocate, void* owner, bool zero_pages)
    : pool_(pool), queue_(queue), allocate_(allocate), owner_(owner), zero_pages_(zero_pages) {}

AllocatorFunctions NumpyAllocator::install_over(const AllocatorFunctions& previous) {
  if (previous_.malloc != nullptr) throw std::invalid_argument("this hook is already installed: create another");
  previous_ = previous;
  set_serving(true);
  return AllocatorFunctions{this, malloc, calloc, realloc, free};
}

void NumpyAllocator::set_serving(bool on) { serving_generation_ = on ? fork_generation() : 0; }

bool NumpyAllocator::serving() const { return serving_generation_ == fork_generation(); }

ForwardedRequests NumpyAllocator::forwarded() const { return {count_, bytes_, live_, peak_}; }

void NumpyAllocator::reset_forwarded() {
  count_ = bytes_ = 0;
  live_ = peak_ = 0;
}

// Returns null if the request is not served or the pool has no memory.
Block* NumpyAllocator::allocate_block(size_t size, bool* refused) {
  if (size < smallest_ || size >= kMaxRequest || !serving()) return nullptr;
  Block* block = pool_->recording() ? nullptr : pool_->try_allocate(size, queue_);
  if (block == nullptr && !std::exchange(in_callback, true)) {
    block = allocate_(owner_, queue_, size, refused);
    in_callback = false;
  }
  if (block != nullptr) widen_range(block->address);
  return block;
}

void NumpyAllocator::widen_range(uint64_t address) {
  for (uint64_t low = low_; address < low && !low_.compare_exchange_weak(low, address);) continue;
  for (uint64_t high = high_; address > high && !high_.compare_exchange_weak(high, address);) continue;
}

[[gnu::noinline]] void* NumpyAllocator::allocate_array(size_t size, bool zeroed) {
  bool refused = false;
  if (const Block* block = allocate_block(size, &refused)) {
    if (zeroed && !(block->untouched && zero_pages_)) zero(memory_of(block), size, zero_pages_);
    return memory_of(block);
  }
  if (refused) return nullptr;
  count_forwarded(size);
  if (sampler_.choose(size)) return forward(size, zeroed);
  return zeroed ? previous_.calloc(previous_.ctx, 1, size) : previous_.malloc(previous_.ctx, size);
}

// Serves a request that the sample has chosen from the previous allocator.
[[gnu::noinline]] void* NumpyAllocator::forward(size_t size, bool zeroed) {
  void* memory = zeroed ? previous_.calloc(previous_.ctx, 1, size) : previous_.malloc(previous_.ctx, size);
  add_sample(memory, size);
  return memory;
}

// Finding the stack may run Python code, whose own arrays are not recorded.
void NumpyAllocator::add_sample(void* memory, size_t size) {
  sampler_.draw();
  if (memory == nullptr || size == 0 || !serving() || std::exchange(in_callback, true)) return;
  uint32_t stack = 0;
  try {
    if (stack_of_caller_(owner_, &stack)) sampler_.add(memory, size, stack);
  } catch (const std::exception&) {  // out of memory for the record: the program goes on without it
  }
  in_callback = false;
}

void NumpyAllocator::sample(Pool* pool, uint64_t mean, uint64_t seed, StackFn stack_of_caller) {
  stack_of_caller_ = stack_of_caller;
  sampler_.start(pool, mean, seed);
}

[[gnu::noinline]] void NumpyAllocator::release(void* memory, size_t size) {
  if (Block* block = own_block(memory)) {
    pool_->free(block);  // no other queue uses it
  } else {
    free_forwarded(memory, size);
  }
}

void* NumpyAllocator::resize(Block* block, size_t size) {
  if (pool_->resize(block, size, block->stack)) return memory_of(block);
  if (void* moved = allocate_array(size, false)) {
    memcpy(moved, memory_of(block), std::min<uint64_t>(block->requested, size));
    pool_->free(block);
    return moved;
  }
  return size <= block->size ? memory_of(block) : nullptr;  // shrinking always succeeds
}

// Only the previous allocator knows the old size of its memory: it grows the memory, and the result is copied.
void* NumpyAllocator::reallocate_foreign(void* memory, size_t size) {
  bool refused = false;
  Block* block = size < kMapThreshold ? nullptr : allocate_block(size, &refused);
  if (refused) return nullptr;
  // The sample forgets the memory before it may belong to another thread. An array that grows is chosen anew.
  if (sampler_.may_have(memory)) [[unlikely]]
    sampler_.remove(memory);
  void* grown = previous_.realloc(previous_.ctx, memory, size);
  if (grown != nullptr) count_reallocated(memory, grown, size);
  if (grown != nullptr && block == nullptr && sampler_.choose(size)) add_sample(grown, size);
  if (block == nullptr) return grown;
  if (grown == nullptr) {
    pool_->free(block);
    return nullptr;
  }
  memcpy(memory_of(block), grown, size);
  free_forwarded(grown, size);
  return memory_of(block);
}

// An array that grows is reallocated several times in a row: only the last size is counted.
void NumpyAllocator::count_reallocated(void* before, void* after, size_t size) {
  const size_t counted = before == reallocated_ ? reallocated_size_.load() : 0;
  if (size > counted) add<uint64_t>(bytes_, size - counted);
  change_live(static_cast<int64_t>(size) - static_cast<int64_t>(counted));
  reallocated_ = after;
  reallocated_size_ = size;
}

void* NumpyAllocator::malloc(void* ctx, size_t size) {
  auto* self = static_cast<NumpyAllocator*>(ctx);
  if (size >= self->smallest()) return self->allocate_array(size, false);
  self->count_forwarded(size);
  if (self->sampler_.choose(size)) [[unlikely]]
    return self->forward(size, false);
  return self->previous_.malloc(self->previous_.ctx, size);
}

void* NumpyAllocator::calloc(void* ctx, size_t count, size_t each) {
  auto* self = static_cast<NumpyAllocator*>(ctx);
  size_t size;
  if (__builtin_mul_overflow(count, each, &size)) return nullptr;
  if (size >= self->smallest()) return self->allocate_array(size, true);
  self->count_forwarded(size);
  if (self->sampler_.choose(size)) [[unlikely]]
    return self->forward(size, true);
  return self->previous_.calloc(self->previous_.ctx, count, each);
}

void* NumpyAllocator::realloc(void* ctx, void* memory, size_t size) {
  auto* self = static_cast<NumpyAllocator*>(ctx);
  if (memory == nullptr) return malloc(ctx, size);
  Block* block = self->own_block(memory);
  return block == nullptr ? self->reallocate_foreign(memory, size) : self->resize(block, size);
}

void NumpyAllocator::free(void* ctx, void* memory, size_t size) {
  auto* self = static_cast<NumpyAllocator*>(ctx);
  if (self->in_range(memory)) return self->release(memory, size);
  self->free_forwarded(memory, size);
}

}  // namespace forebay
