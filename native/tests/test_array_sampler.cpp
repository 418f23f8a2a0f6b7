// Tests of the sample of small arrays: which are recorded, for how many bytes, and until when.
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "numpy/array_sampler.hpp"
#include "numpy/numpy_allocator.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr size_t kMean = 64 * 1024;

void* at(size_t number) { return reinterpret_cast<void*>((number + 1) * 4096); }

struct Fixture {
  Pool pool;
  ArraySampler sampler;

  explicit Fixture(uint64_t seed = 1, uint64_t mean = kMean) { sampler.start(&pool, mean, seed); }
  // Returns the number of arrays that were chosen.
  size_t allocate(size_t count, size_t size, size_t first = 0) {
    size_t chosen = 0;
    for (size_t i = 0; i < count; ++i) {
      if (!sampler.choose(size)) continue;
      sampler.draw();
      sampler.add(at(first + i), size, 0);
      ++chosen;
    }
    return chosen;
  }
  int64_t live() const { return pool.count(kAllocation, kAllSizes).current; }
  int64_t bytes() const { return pool.count(kRequestedBytes, kAllSizes).current; }
};

}  // namespace

TEST(estimates_agree_with_the_sizes) {
  for (const size_t size : {size_t{100}, size_t{1024}, size_t{50'000}, size_t{600'000}}) {
    Fixture fixture;
    const size_t count = 400 * kMean / size + 4000;
    fixture.allocate(count, size);
    const double truth = static_cast<double>(count * size), share = -std::expm1(-static_cast<double>(size) / kMean);
    const double error = size / share * std::sqrt(static_cast<double>(count) * share * (1 - share));
    CHECK(std::abs(static_cast<double>(fixture.bytes()) - truth) < 4 * error + static_cast<double>(count));
  }
}

TEST(the_same_seed_chooses_the_same_arrays) {
  Fixture first(7), second(7), other(8);
  first.allocate(5000, 1000);
  second.allocate(5000, 1000);
  other.allocate(5000, 1000);
  size_t differences = 0;
  for (size_t i = 0; i < 5000; ++i) {
    CHECK(first.sampler.may_have(at(i)) == second.sampler.may_have(at(i)));
    differences += first.sampler.may_have(at(i)) != other.sampler.may_have(at(i));
  }
  CHECK(differences > 0);
}

TEST(frees_of_chosen_arrays_are_recorded_once) {
  Fixture fixture;
  const size_t chosen = fixture.allocate(100'000, 4000);
  CHECK(chosen > 3000 && fixture.live() == static_cast<int64_t>(chosen));
  size_t slow = 0;
  for (size_t i = 0; i < 100'000; ++i) {
    if (!fixture.sampler.may_have(at(i))) continue;
    ++slow;
    fixture.sampler.remove(at(i));
    fixture.sampler.remove(at(i));
  }
  CHECK(fixture.live() == 0 && fixture.bytes() == 0 && fixture.pool.check_invariants() == nullptr);
  CHECK(slow < chosen + 25'000);  // the others were told apart by one slot of the table
}

TEST(a_new_start_forgets_the_arrays) {
  Fixture fixture;
  fixture.allocate(10'000, 4000);
  Pool later;
  fixture.sampler.start(&later, kMean, 1);
  for (size_t i = 0; i < 10'000; ++i) CHECK(!fixture.sampler.may_have(at(i)));
  fixture.sampler.start(&later, 0, 1);
  CHECK(fixture.allocate(10'000, 4000) == 0 && !fixture.sampler.sampling());
}

TEST(threads_free_while_others_allocate) {
  Fixture fixture;
  fixture.allocate(2000, 40'000);
  std::thread freeing([&] {
    for (size_t i = 0; i < 2000; ++i) {
      if (fixture.sampler.may_have(at(i))) fixture.sampler.remove(at(i));
    }
  });
  for (size_t i = 0; i < 4000; ++i) fixture.sampler.add(at(10'000 + i), 40'000, 0);  // the table grows during the frees
  freeing.join();
  CHECK(fixture.live() == 4000 && fixture.pool.check_invariants() == nullptr);
}

namespace {

// A NumPy allocator in front of the C library's, which serves nothing itself.
struct Hooked {
  Pool device, samples;
  bool possible = true;
  NumpyAllocator allocator{&device, 0, refuse, this, false};
  AllocatorFunctions numpy;

  Hooked() : numpy(allocator.install_over({nullptr, get, zeroed, grow, release})) {
    allocator.set_smallest(1 << 17);
    allocator.sample(&samples, 1, 1, stack);  // each array
  }
  static Block* refuse(void*, uint64_t, size_t, bool*) { return nullptr; }
  static bool stack(void* owner, uint32_t*) { return static_cast<Hooked*>(owner)->possible; }
  static void* get(void*, size_t size) { return size == 404 ? nullptr : std::malloc(size); }
  static void* zeroed(void*, size_t count, size_t each) { return std::calloc(count, each); }
  static void* grow(void*, void* memory, size_t size) { return size == 404 ? nullptr : std::realloc(memory, size); }
  static void release(void*, void* memory, size_t) { std::free(memory); }
  int64_t bytes() const { return samples.count(kRequestedBytes, kAllSizes).current; }
};

}  // namespace

TEST(forwarded_requests_are_sampled) {
  Hooked hooked;
  const AllocatorFunctions& numpy = hooked.numpy;
  void* first = numpy.malloc(numpy.ctx, 1000);
  void* second = numpy.calloc(numpy.ctx, 10, 200);
  CHECK(hooked.bytes() == 3000);
  first = numpy.realloc(numpy.ctx, first, 5'000'000);  // beyond the smallest, but the previous allocator grows it
  CHECK(hooked.bytes() == 5'002'000);
  numpy.free(numpy.ctx, first, 5'000'000);
  CHECK(hooked.bytes() == 2000);
  CHECK(numpy.malloc(numpy.ctx, 404) == nullptr && hooked.bytes() == 2000);
  hooked.possible = false;
  void* third = numpy.malloc(numpy.ctx, 1000);
  CHECK(third != nullptr && hooked.bytes() == 2000);
  hooked.allocator.set_serving(false);  // ends the sample, but not of the arrays that it has
  hooked.possible = true;
  void* fourth = numpy.malloc(numpy.ctx, 1000);
  CHECK(hooked.bytes() == 2000);
  numpy.free(numpy.ctx, second, 2000);
  numpy.free(numpy.ctx, third, 1000);
  numpy.free(numpy.ctx, fourth, 1000);
  CHECK(hooked.bytes() == 0);
}

TEST(totals_are_not_below_peaks) {
  Hooked hooked;
  const AllocatorFunctions& numpy = hooked.numpy;
  void* memory = numpy.malloc(numpy.ctx, 80);
  void* other = numpy.malloc(numpy.ctx, 80);
  for (size_t size = 100; size < 3'000'000; size *= 2) {
    memory = numpy.realloc(numpy.ctx, memory, size);
    other = numpy.realloc(numpy.ctx, other, size / 2);
    const ForwardedRequests seen = hooked.allocator.forwarded();
    CHECK(seen.peak >= 0 && seen.bytes >= static_cast<uint64_t>(seen.peak) && seen.bytes >= size);
  }
  numpy.free(numpy.ctx, memory, 0);
  numpy.free(numpy.ctx, other, 0);
}

int main(int count, char** words) { return check::run_all(count > 1 ? words[1] : ""); }
