// Lends a pool's blocks to a program that knows malloc only (NumPy, by NEP 49), in front of what served it before.
//
// What it does not serve it forwards, and it takes back what is its own, known by its address. So memory outlives the
// lending, and memory from before it is freed by whoever gave it. The usual request is small: it pays a look and a
// jump.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pool/pool.hpp"

namespace forebay {

struct Functions {  // laid out as NumPy's allocators are
  void* ctx;
  void* (*malloc)(void* ctx, size_t size);
  void* (*calloc)(void* ctx, size_t count, size_t each);
  void* (*realloc)(void* ctx, void* memory, size_t size);
  void (*free)(void* ctx, void* memory, size_t size);
};

struct Handler {  // laid out as NumPy's handlers of version 1 are
  char name[127] = "forebay";
  uint8_t version = 1;
  Functions functions{};
};

class Lender {
 public:
  // How the owner gets a block when the pool has none, or when the history wants to know who asks.
  // Null: refused, or (not `refused`) no moment for that, so whoever stood there before is asked. What a thread
  // allocates while it asks is not served.
  using Ask = Block* (*)(void* owner, uint64_t queue, size_t size, bool* refused);

  // `queue` names the free memory that is lent: of a queue with work, memory is free in that queue's order only.
  // `pages`: the pool's memory is anonymous and the process's own, so fresh and dropped pages are zero.
  Lender(Pool* pool, uint64_t queue, Ask ask, void* owner, bool pages);
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  // Gives what is to stand in their place; std::invalid_argument for the second time.
  Functions stand_before(const Functions& below);
  void* owner() const { return owner_; }

  void serve(bool on) { serving_ = on; }
  bool serving() const;  // false for ever in a forked child, where the pool cannot grow
  void set_smallest(size_t size) { smallest_ = size == 0 ? 1 : size; }
  size_t smallest() const { return smallest_.load(std::memory_order_relaxed); }

 private:
  static void* malloc(void* ctx, size_t size);
  static void* calloc(void* ctx, size_t count, size_t each);
  static void* realloc(void* ctx, void* memory, size_t size);
  static void free(void* ctx, void* memory, size_t size);

  void* lend(size_t size, bool zeroed);
  void* resize(Block* block, size_t size);
  void* take_over(void* memory, size_t size);
  void take_back(void* memory, size_t size);
  Block* take(size_t size, bool* refused);
  void reach(uint64_t address);
  Block* lent(void* memory) const { return in_reach(memory) ? pool_->live_at(address_of(memory)) : nullptr; }
  bool in_reach(void* memory) const {
    const uint64_t low = low_.load(std::memory_order_relaxed);  // free() saw malloc() happen, in whatever thread
    return address_of(memory) - low <= high_.load(std::memory_order_relaxed) - low;
  }
  static uint64_t address_of(void* memory) { return reinterpret_cast<uintptr_t>(memory); }

  // What a small request looks at, in one line of the cache.
  alignas(64) Functions below_{};
  std::atomic<size_t> smallest_{1};
  std::atomic<uint64_t> low_{~uint64_t{0}}, high_{0};  // between these lies all that was ever lent

  Pool* const pool_;
  const uint64_t queue_;
  const Ask ask_;
  void* const owner_;
  const uint64_t generation_;
  const bool pages_;
  std::atomic<bool> serving_{false};
};

}  // namespace forebay
