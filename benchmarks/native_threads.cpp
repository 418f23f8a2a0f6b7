// Native threads that allocate and free on one pool: total pairs per second for 1, 2, 4 and 8 threads, with one queue
// per thread and with one queue for all.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "pool/pool.hpp"

using namespace forebay;

namespace {

constexpr int kPairs = 2'000'000;

double rate(int threads, bool own_queues) {
  Pool pool;
  for (uint64_t queue = 0; queue < 8; ++queue) pool.adopt((queue + 1) * kLargeSegment, kSmallSegment, queue, true);
  std::vector<std::thread> all;
  const auto start = std::chrono::steady_clock::now();
  for (int thread = 0; thread < threads; ++thread) {
    all.emplace_back([&, queue = own_queues ? static_cast<uint64_t>(thread) : 0] {
      for (int pair = 0; pair < kPairs / threads; ++pair) pool.free(pool.try_allocate(1024, queue));
    });
  }
  for (std::thread& thread : all) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return pool.check_invariants() == nullptr ? kPairs / seconds : 0;
}

double median_rate(int threads, bool own_queues) {
  std::vector<double> rates;
  for (int repetition = 0; repetition < 7; ++repetition) rates.push_back(rate(threads, own_queues));
  std::nth_element(rates.begin(), rates.begin() + 3, rates.end());
  return rates[3];
}

}  // namespace

int main() {
  for (const int threads : {1, 2, 4, 8})
    std::printf("%d %.0f %.0f\n", threads, median_rate(threads, true), median_rate(threads, false));
}
