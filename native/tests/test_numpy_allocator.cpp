// Tests of the NumPy allocator: a pool over memory of the test, in front of a counting allocator.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "numpy/numpy_allocator.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;
constexpr size_t kSmallest = 128 * kKiB;

// The previous allocator: malloc with a count of live allocations.
struct CountingMalloc {
  std::atomic<int> alive{0};
  bool exhausted = false;

  static void* get(void* ctx, size_t size) {
    auto* self = static_cast<CountingMalloc*>(ctx);
    if (self->exhausted) return nullptr;
    ++self->alive;
    return std::malloc(size);
  }
  static void* zeroed(void* ctx, size_t count, size_t each) {
    ++static_cast<CountingMalloc*>(ctx)->alive;
    return std::calloc(count, each);
  }
  static void* grow(void* ctx, void* memory, size_t size) {
    return static_cast<CountingMalloc*>(ctx)->exhausted ? nullptr : std::realloc(memory, size);
  }
  static void release(void* ctx, void* memory, size_t) {
    if (memory != nullptr) --static_cast<CountingMalloc*>(ctx)->alive;
    std::free(memory);
  }
  AllocatorFunctions functions() { return {this, get, zeroed, grow, release}; }
};

// An owner that adds one segment to its pool per request, unless `full` or `busy`.
struct Fixture {
  CountingMalloc previous;
  Pool pool;
  bool full = false, busy = false;
  std::vector<void*> segments;
  NumpyAllocator allocator{&pool, 0, allocate, this, false};
  AllocatorFunctions numpy;

  explicit Fixture(const Fixture* lower = nullptr)
      : numpy(allocator.install_over(lower ? lower->numpy : previous.functions())) {
    allocator.set_smallest(kSmallest);
  }
  ~Fixture() {
    for (void* segment : segments) std::free(segment);
  }

  static Block* allocate(void* owner, uint64_t queue, size_t size, bool* refused) {
    auto* self = static_cast<Fixture*>(owner);
    if (self->busy) return nullptr;  // not possible now
    if (self->full) {
      *refused = true;
      return nullptr;
    }
    Policy policy;
    policy.exact_segments = true;
    const auto [wanted, small] = policy.segment_for(size);
    void* segment = std::aligned_alloc(2 * kMiB, round_up(wanted, 2 * kMiB));
    std::memset(segment, 0xAA, wanted);
    self->segments.push_back(segment);
    self->pool.adopt(reinterpret_cast<uintptr_t>(segment), wanted, queue, small);
    return self->pool.try_allocate(size, queue);
  }

  void* get(size_t size) { return numpy.malloc(numpy.ctx, size); }
  void* zeroed(size_t size) { return numpy.calloc(numpy.ctx, 1, size); }
  void* grow(void* memory, size_t size) { return numpy.realloc(numpy.ctx, memory, size); }
  void release(void* memory, size_t size) { numpy.free(numpy.ctx, memory, size); }
  int64_t live_blocks() const { return pool.count(kAllocation, kAllSizes).current; }
};

bool all_bytes(const void* memory, size_t nbytes, unsigned char byte) {
  const auto* bytes = static_cast<const unsigned char*>(memory);
  for (size_t i = 0; i < nbytes; ++i) {
    if (bytes[i] != byte) return false;
  }
  return true;
}

}  // namespace

TEST(small_requests_are_forwarded) {
  Fixture fixture;
  void* small = fixture.get(kSmallest - 1);
  CHECK(fixture.previous.alive == 1 && fixture.live_blocks() == 0);
  fixture.release(small, kSmallest - 1);
  CHECK(fixture.previous.alive == 0);
}

TEST(large_requests_use_the_pool) {
  Fixture fixture;
  void* large = fixture.get(kMiB);
  CHECK(fixture.previous.alive == 0 && fixture.live_blocks() == 1);
  fixture.release(large, kMiB);
  CHECK(fixture.live_blocks() == 0 && fixture.pool.check_invariants() == nullptr);
  CHECK(fixture.get(kMiB) == large);  // reused
  fixture.release(large, kMiB);
}

TEST(calloc_zeroes_reused_memory) {
  Fixture fixture;
  void* first = fixture.get(kMiB);
  std::memset(first, 7, kMiB);
  fixture.release(first, kMiB);
  void* second = fixture.zeroed(kMiB);
  CHECK(second == first && all_bytes(second, kMiB, 0));
  fixture.release(second, kMiB);
  CHECK(fixture.numpy.calloc(fixture.numpy.ctx, ~size_t{0} / 2, 3) == nullptr);  // the product overflows
}

TEST(refusal_fails_but_busy_owner_forwards) {
  Fixture fixture;
  fixture.full = true;
  CHECK(fixture.get(kMiB) == nullptr && fixture.previous.alive == 0);
  fixture.full = false;
  fixture.busy = true;
  void* memory = fixture.get(kMiB);
  CHECK(memory != nullptr && fixture.previous.alive == 1);
  fixture.release(memory, kMiB);
}

TEST(memory_is_freed_by_its_allocator) {
  Fixture fixture;
  fixture.allocator.set_serving(false);
  void* from_malloc = fixture.get(kMiB);
  fixture.allocator.set_serving(true);
  void* from_pool = fixture.get(kMiB);
  fixture.allocator.set_serving(false);
  fixture.release(from_pool, kMiB);
  fixture.release(from_malloc, kMiB);
  CHECK(fixture.live_blocks() == 0 && fixture.previous.alive == 0);
  fixture.release(nullptr, 0);
}

TEST(growing_array_moves_to_pool_when_large) {
  Fixture fixture;
  void* memory = fixture.get(kKiB);
  std::memset(memory, 3, kKiB);
  memory = fixture.grow(memory, kMiB);
  CHECK(fixture.previous.alive == 1 && fixture.live_blocks() == 0);
  memory = fixture.grow(memory, 32 * kMiB);
  CHECK(fixture.previous.alive == 0 && fixture.live_blocks() == 1 && all_bytes(memory, kKiB, 3));
  fixture.release(memory, 32 * kMiB);
}

TEST(failed_realloc_keeps_contents) {
  Fixture fixture;
  void* from_pool = fixture.get(kMiB);
  std::memset(from_pool, 5, kMiB);
  void* from_malloc = fixture.get(kKiB);
  fixture.full = fixture.previous.exhausted = true;
  CHECK(fixture.grow(from_pool, 8 * kMiB) == nullptr && all_bytes(from_pool, kMiB, 5));
  from_pool = fixture.grow(from_pool, kMiB / 2);
  CHECK(from_pool != nullptr);  // shrinking always succeeds
  CHECK(fixture.grow(from_malloc, 64 * kMiB) == nullptr);
  fixture.release(from_pool, kMiB / 2);
  fixture.release(from_malloc, kKiB);
  CHECK(fixture.live_blocks() == 0 && fixture.previous.alive == 0);
}

TEST(realloc_in_pool_keeps_contents) {
  Fixture fixture;
  void* memory = fixture.get(2 * kMiB);
  std::memset(memory, 9, 2 * kMiB);
  memory = fixture.grow(memory, 6 * kMiB);
  CHECK(all_bytes(memory, 2 * kMiB, 9) && fixture.live_blocks() == 1);
  memory = fixture.grow(memory, kMiB);
  CHECK(all_bytes(memory, kMiB, 9) && fixture.live_blocks() == 1 && fixture.pool.check_invariants() == nullptr);
  fixture.release(memory, kMiB);
}

TEST(stacked_allocators_free_their_own_memory) {
  Fixture lower, upper(&lower);  // the upper one forwards memory it does not own
  AllocatorFunctions both = upper.numpy;
  CHECK(!check::error_of([&] { lower.allocator.install_over(both); }).empty());  // would recurse endlessly
  void* from_upper = both.malloc(both.ctx, kMiB);
  upper.allocator.set_serving(false);
  void* from_lower = both.malloc(both.ctx, kMiB);
  CHECK(upper.live_blocks() == 1 && lower.live_blocks() == 1);
  both.free(both.ctx, from_lower, kMiB);
  both.free(both.ctx, from_upper, kMiB);
  CHECK(upper.live_blocks() == 0 && lower.live_blocks() == 0);
}

TEST(memory_may_be_freed_on_another_thread) {
  Fixture fixture;
  std::array<void*, 8> warm;  // the owner's callback is not thread-safe, so the threads use cached blocks only
  for (void*& memory : warm) memory = fixture.get(kMiB);
  for (void* memory : warm) fixture.release(memory, kMiB);
  fixture.busy = true;
  std::array<std::atomic<void*>, 4> shelf{};
  const auto swap = [&](unsigned seed) {
    for (int i = 0; i < 2000; ++i) {
      seed = seed * 1664525u + 1013904223u;
      void* memory = fixture.get(seed % 2 ? kMiB : kKiB);
      static_cast<char*>(memory)[0] = 1;
      if (void* old = shelf[seed / 2 % shelf.size()].exchange(memory)) fixture.release(old, kMiB);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(swap, seed);
  for (std::thread& thread : threads) thread.join();
  for (auto& memory : shelf) fixture.release(memory, kMiB);
  CHECK(fixture.live_blocks() == 0 && fixture.previous.alive == 0 && fixture.pool.check_invariants() == nullptr);
}

int main(int count, char** words) { return check::run_all(count > 1 ? words[1] : ""); }
