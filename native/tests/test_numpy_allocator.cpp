// Lending as small stories: a pool over memory of the test, in front of a maker that counts.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "pool/check.hpp"
#include "numpy/numpy_allocator.hpp"

using namespace forebay;

namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;
constexpr size_t kSmallest = 128 * kKiB;

// What stood there before: malloc, counted.
struct Maker {
  std::atomic<int> alive{0};
  bool empty = false;

  static void* get(void* ctx, size_t size) {
    auto* self = static_cast<Maker*>(ctx);
    if (self->empty) return nullptr;
    ++self->alive;
    return std::malloc(size);
  }
  static void* zeroed(void* ctx, size_t count, size_t each) {
    ++static_cast<Maker*>(ctx)->alive;
    return std::calloc(count, each);
  }
  static void* grow(void* ctx, void* memory, size_t size) {
    return static_cast<Maker*>(ctx)->empty ? nullptr : std::realloc(memory, size);
  }
  static void release(void* ctx, void* memory, size_t) {
    if (memory != nullptr) --static_cast<Maker*>(ctx)->alive;
    std::free(memory);
  }
  Functions functions() { return {this, get, zeroed, grow, release}; }
};

// The owner grows its pool by one segment a request, until it is told to refuse.
struct Scene {
  Maker maker;
  Pool pool;
  bool full = false, busy = false;
  std::vector<void*> segments;
  Lender lender{&pool, 0, ask, this, false};
  Functions numpy;

  explicit Scene(const Scene* under = nullptr) : numpy(lender.stand_before(under ? under->numpy : maker.functions())) {
    lender.set_smallest(kSmallest);
  }
  ~Scene() {
    for (void* segment : segments) std::free(segment);
  }

  static Block* ask(void* owner, uint64_t queue, size_t size, bool* refused) {
    auto* self = static_cast<Scene*>(owner);
    if (self->busy) return nullptr;  // no moment for that
    if (self->full) {
      *refused = true;
      return nullptr;
    }
    Policy policy;
    policy.fine = true;
    const auto [wanted, small] = policy.segment_for(size);
    void* segment = std::aligned_alloc(2 * kMiB, round_up(wanted, 2 * kMiB));
    std::memset(segment, 0xAA, wanted);
    self->segments.push_back(segment);
    self->pool.adopt(reinterpret_cast<uintptr_t>(segment), wanted, queue, small);
    return self->pool.take(size, queue);
  }

  void* get(size_t size) { return numpy.malloc(numpy.ctx, size); }
  void* zeroed(size_t size) { return numpy.calloc(numpy.ctx, 1, size); }
  void* grow(void* memory, size_t size) { return numpy.realloc(numpy.ctx, memory, size); }
  void release(void* memory, size_t size) { numpy.free(numpy.ctx, memory, size); }
  int64_t lent() const { return pool.count(kAllocation, kAll).current; }
};

bool all(const void* memory, size_t nbytes, unsigned char byte) {
  const auto* bytes = static_cast<const unsigned char*>(memory);
  for (size_t i = 0; i < nbytes; ++i) {
    if (bytes[i] != byte) return false;
  }
  return true;
}

}  // namespace

TEST(small_requests_pass_through) {
  Scene scene;
  void* small = scene.get(kSmallest - 1);
  CHECK(scene.maker.alive == 1 && scene.lent() == 0);
  scene.release(small, kSmallest - 1);
  CHECK(scene.maker.alive == 0);
}

TEST(large_ones_are_lent_and_taken_back) {
  Scene scene;
  void* large = scene.get(kMiB);
  CHECK(scene.maker.alive == 0 && scene.lent() == 1);
  scene.release(large, kMiB);
  CHECK(scene.lent() == 0 && scene.pool.broken() == nullptr);
  CHECK(scene.get(kMiB) == large);  // from the cache
  scene.release(large, kMiB);
}

TEST(zero_is_zero_on_used_memory) {
  Scene scene;
  void* first = scene.get(kMiB);
  std::memset(first, 7, kMiB);
  scene.release(first, kMiB);
  void* second = scene.zeroed(kMiB);
  CHECK(second == first && all(second, kMiB, 0));
  scene.release(second, kMiB);
  CHECK(scene.numpy.calloc(scene.numpy.ctx, ~size_t{0} / 2, 3) == nullptr);  // the product overflows
}

TEST(a_refusal_is_one_and_no_moment_is_none) {
  Scene scene;
  scene.full = true;
  CHECK(scene.get(kMiB) == nullptr && scene.maker.alive == 0);
  scene.full = false;
  scene.busy = true;
  void* memory = scene.get(kMiB);
  CHECK(memory != nullptr && scene.maker.alive == 1);
  scene.release(memory, kMiB);
}

TEST(memory_from_before_and_after_goes_back_where_it_came_from) {
  Scene scene;
  scene.lender.serve(false);
  void* before = scene.get(kMiB);
  scene.lender.serve(true);
  void* ours = scene.get(kMiB);
  scene.lender.serve(false);
  scene.release(ours, kMiB);
  scene.release(before, kMiB);
  CHECK(scene.lent() == 0 && scene.maker.alive == 0);
  scene.release(nullptr, 0);
}

TEST(what_grows_stays_with_its_maker_until_it_is_large) {
  Scene scene;
  void* memory = scene.get(kKiB);
  std::memset(memory, 3, kKiB);
  memory = scene.grow(memory, kMiB);
  CHECK(scene.maker.alive == 1 && scene.lent() == 0);
  memory = scene.grow(memory, 32 * kMiB);
  CHECK(scene.maker.alive == 0 && scene.lent() == 1 && all(memory, kKiB, 3));
  scene.release(memory, 32 * kMiB);
}

TEST(a_refused_growth_leaves_everything_as_it_was) {
  Scene scene;
  void* ours = scene.get(kMiB);
  std::memset(ours, 5, kMiB);
  void* theirs = scene.get(kKiB);
  scene.full = scene.maker.empty = true;
  CHECK(scene.grow(ours, 8 * kMiB) == nullptr && all(ours, kMiB, 5));
  ours = scene.grow(ours, kMiB / 2);
  CHECK(ours != nullptr);  // to shrink is never refused
  CHECK(scene.grow(theirs, 64 * kMiB) == nullptr);
  scene.release(ours, kMiB / 2);
  scene.release(theirs, kKiB);
  CHECK(scene.lent() == 0 && scene.maker.alive == 0);
}

TEST(ours_keeps_its_bytes_as_it_grows_and_shrinks) {
  Scene scene;
  void* memory = scene.get(2 * kMiB);
  std::memset(memory, 9, 2 * kMiB);
  memory = scene.grow(memory, 6 * kMiB);
  CHECK(all(memory, 2 * kMiB, 9) && scene.lent() == 1);
  memory = scene.grow(memory, kMiB);
  CHECK(all(memory, kMiB, 9) && scene.lent() == 1 && scene.pool.broken() == nullptr);
  scene.release(memory, kMiB);
}

TEST(two_lenders_take_back_their_own) {
  Scene lower, upper(&lower);  // what the upper one does not know is the lower one's, or the maker's
  Functions both = upper.numpy;
  CHECK(!check::refusal([&] { lower.lender.stand_before(both); }).empty());  // for ever round
  void* from_upper = both.malloc(both.ctx, kMiB);
  upper.lender.serve(false);
  void* from_lower = both.malloc(both.ctx, kMiB);
  CHECK(upper.lent() == 1 && lower.lent() == 1);
  both.free(both.ctx, from_lower, kMiB);
  both.free(both.ctx, from_upper, kMiB);
  CHECK(upper.lent() == 0 && lower.lent() == 0);
}

TEST(threads_borrow_and_return_each_others) {
  Scene scene;
  std::array<void*, 8> warm;  // the owner's growing is the interpreter's to guard, so the threads live off the cache
  for (void*& memory : warm) memory = scene.get(kMiB);
  for (void* memory : warm) scene.release(memory, kMiB);
  scene.busy = true;
  std::array<std::atomic<void*>, 4> shelf{};
  const auto swap = [&](unsigned seed) {
    for (int i = 0; i < 2000; ++i) {
      seed = seed * 1664525u + 1013904223u;
      void* memory = scene.get(seed % 2 ? kMiB : kKiB);
      static_cast<char*>(memory)[0] = 1;
      if (void* old = shelf[seed / 2 % shelf.size()].exchange(memory)) scene.release(old, kMiB);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(swap, seed);
  for (std::thread& thread : threads) thread.join();
  for (auto& memory : shelf) scene.release(memory, kMiB);
  CHECK(scene.lent() == 0 && scene.maker.alive == 0 && scene.pool.broken() == nullptr);
}

int main(int count, char** words) { return check::run_all(count > 1 ? words[1] : ""); }
