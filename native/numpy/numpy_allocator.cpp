#include "numpy/numpy_allocator.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "pool/policy.hpp"
#include "base/process.hpp"

namespace forebay {
namespace {

// Beyond this glibc maps each array anew. So from here on (docs/design/numpy-allocations.md has the measurements) it is
// cheaper to let the kernel bring zero pages, and to take over what realloc grows; below, its maker grows it in place.
constexpr size_t kBeyondHeap = size_t{32} << 20;

thread_local bool asking = false;

void zero(void* memory, size_t nbytes, [[maybe_unused]] bool pages) {
#ifdef __linux__  // elsewhere the advice promises nothing
  if (pages && nbytes >= kBeyondHeap) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(memory), end = begin + nbytes;
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    void* const pages_of_it = reinterpret_cast<void*>(first);
    // Of what other processes have mapped too, the first one makes zeros; of what is ours alone, the second.
    if (madvise(pages_of_it, last - first, MADV_REMOVE) == 0 ||
        madvise(pages_of_it, last - first, MADV_DONTNEED) == 0) {
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

Lender::Lender(Pool* pool, uint64_t queue, Ask ask, void* owner, bool pages)
    : pool_(pool), queue_(queue), ask_(ask), owner_(owner), generation_(process_generation()), pages_(pages) {}

Functions Lender::stand_before(const Functions& below) {
  if (below_.malloc != nullptr) throw std::invalid_argument("this hook stands somewhere already: make another");
  below_ = below;
  serving_ = true;
  return Functions{this, malloc, calloc, realloc, free};
}

bool Lender::serving() const { return serving_ && generation_ == process_generation(); }

// Null where the pool is not asked or has nothing.
Block* Lender::take(size_t size, bool* refused) {
  if (size < smallest_ || size >= kMost || !serving()) return nullptr;
  Block* block = pool_->recording() ? nullptr : pool_->take(size, queue_);
  if (block == nullptr && !std::exchange(asking, true)) {
    block = ask_(owner_, queue_, size, refused);
    asking = false;
  }
  if (block != nullptr) reach(block->address);
  return block;
}

void Lender::reach(uint64_t address) {
  for (uint64_t low = low_; address < low && !low_.compare_exchange_weak(low, address);) continue;
  for (uint64_t high = high_; address > high && !high_.compare_exchange_weak(high, address);) continue;
}

[[gnu::noinline]] void* Lender::lend(size_t size, bool zeroed) {
  bool refused = false;
  if (const Block* block = take(size, &refused)) {
    if (zeroed && !(block->untouched && pages_)) zero(memory_of(block), size, pages_);
    return memory_of(block);
  }
  if (refused) return nullptr;
  return zeroed ? below_.calloc(below_.ctx, 1, size) : below_.malloc(below_.ctx, size);
}

[[gnu::noinline]] void Lender::take_back(void* memory, size_t size) {
  if (Block* block = lent(memory)) {
    pool_->give(block);  // no other queue uses what was lent
  } else {
    below_.free(below_.ctx, memory, size);
  }
}

void* Lender::resize(Block* block, size_t size) {
  if (pool_->resize(block, size, block->stack)) return memory_of(block);
  if (void* moved = lend(size, false)) {
    memcpy(moved, memory_of(block), std::min<uint64_t>(block->requested, size));
    pool_->give(block);
    return moved;
  }
  return size <= block->size ? memory_of(block) : nullptr;  // to shrink is never refused
}

// How much memory from before holds, only its maker knows: so the maker grows it, and we copy.
void* Lender::take_over(void* memory, size_t size) {
  bool refused = false;
  Block* block = size < kBeyondHeap ? nullptr : take(size, &refused);
  if (refused) return nullptr;
  void* grown = below_.realloc(below_.ctx, memory, size);
  if (block == nullptr) return grown;
  if (grown == nullptr) {
    pool_->give(block);
    return nullptr;
  }
  memcpy(memory_of(block), grown, size);
  below_.free(below_.ctx, grown, size);
  return memory_of(block);
}

void* Lender::malloc(void* ctx, size_t size) {
  auto* self = static_cast<Lender*>(ctx);
  if (size >= self->smallest()) return self->lend(size, false);
  return self->below_.malloc(self->below_.ctx, size);
}

void* Lender::calloc(void* ctx, size_t count, size_t each) {
  auto* self = static_cast<Lender*>(ctx);
  size_t size;
  if (__builtin_mul_overflow(count, each, &size)) return nullptr;
  if (size >= self->smallest()) return self->lend(size, true);
  return self->below_.calloc(self->below_.ctx, count, each);
}

void* Lender::realloc(void* ctx, void* memory, size_t size) {
  auto* self = static_cast<Lender*>(ctx);
  if (memory == nullptr) return malloc(ctx, size);
  Block* block = self->lent(memory);
  return block == nullptr ? self->take_over(memory, size) : self->resize(block, size);
}

void Lender::free(void* ctx, void* memory, size_t size) {
  auto* self = static_cast<Lender*>(ctx);
  if (self->in_reach(memory)) return self->take_back(memory, size);
  self->below_.free(self->below_.ctx, memory, size);
}

}  // namespace forebay
