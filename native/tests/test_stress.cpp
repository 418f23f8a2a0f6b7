// One pool, several queues and the history used from many threads at once, as a program without a lock around them
// would: meant for ThreadSanitizer. Blocks are real memory, so that two owners of one block also find wrong bytes.
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "pool/pool.hpp"
#include "pool/tables.hpp"
#include "queue/worker.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr int64_t kLimit = 60'000'000'000;  // of all waits, so that a broken queue fails instead of hanging
constexpr size_t kQueues = 3, kThreads = 4, kSteps = 2000, kSegment = size_t{1} << 20;
constexpr size_t kSegmentsEach = 4;

// A runtime in miniature: what the Python layer does with the core, without Python.
class Runtime {
 public:
  Runtime() {
    for (uint64_t queue = 0; queue < kQueues; ++queue) {
      workers_.emplace_back(new Worker(queue));
      for (size_t i = 0; i < kSegmentsEach; ++i) {
        memory_.emplace_back(new char[kSegment + kMinBlockSize]);
        const auto start = reinterpret_cast<uint64_t>(memory_.back().get());
        const uint64_t aligned = (start + kMinBlockSize - 1) / kMinBlockSize * kMinBlockSize;
        segments_.push_back({aligned, queue});
        pool.adopt(aligned, kSegment, queue, true);
      }
    }
    pool.record_history(500);
  }

  // Fills blocks on one queue, and copies them on another one that waits for the first.
  void use(size_t number) {
    std::mt19937_64 chance(number);
    for (size_t step = 0; step < kSteps; ++step) {
      const size_t mine = chance() % kQueues, other = chance() % kQueues;
      const size_t nbytes = 1 + chance() % 16384;
      Block* from = pool.try_allocate(nbytes, mine);
      Block* to = pool.try_allocate(nbytes, other);
      if (from && to) transfer(from, to, nbytes, mine, other, static_cast<int>(chance() % 256));
      // The next user of the memory uses the same queue, in order; another queue delays the free.
      if (from) pool.free(from);
      if (to) pool.free(to);
      if (step % 8 == 0) complete_frees(false);
    }
  }

  // Reads everything that other threads change, and restarts the recording.
  void observe() {
    for (uint32_t round = 0; !stopped; ++round) {
      uint64_t lost = 0;
      for (const Entry& entry : pool.history(&lost)) impossible += entry.action == Action::Oom;
      const Rows rows = rows_of(pool);
      impossible += rows.segments.size() > segments_.size();
      pool.set_note(round);
      pool.record_snapshot_event();
      pool.counts();
      if (round % 16 == 0) pool.record_history(500, true, 0, round % 32 == 0);
      if (round % 64 == 0) pool.record_history(0), pool.record_history(500);
      const uint64_t meter = pool.begin_meter();
      pool.meter(meter, true);
      for (auto& worker : workers_) worker->busy(), worker->idle(), worker->submitted();
      std::this_thread::yield();
    }
  }

  // Removes free segments and adds them again, and pauses queues.
  void move_segments() {
    std::mt19937_64 chance(99);
    while (!stopped) {
      const auto [address, queue] = segments_[chance() % segments_.size()];
      if (pool.evict(address)) pool.adopt(address, kSegment, queue, true);
      Worker& worker = *workers_[chance() % kQueues];
      worker.pause(kLimit);
      worker.resume();
      const std::shared_ptr<Log> log = worker.log(16);
      std::this_thread::yield();
    }
  }

  // Completes the frees whose queues have reached them; with `wait` all, waiting for the queues.
  void complete_frees(bool wait) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const DeferredFree& free : pool.deferred()) {
      std::vector<std::pair<uint64_t, uint64_t>> ticks;
      for (uint64_t user : free.users) ticks.emplace_back(user, workers_[user]->signal());
      pending_.push_back({free.serial, ticks});
      pool.acknowledge_deferred(free.serial);
    }
    for (auto& [serial, ticks] : pending_) {
      bool reached = serial != 0;
      for (auto [queue, tick] : ticks) {
        reached = reached &&
                  (wait ? workers_[queue]->wait(tick, kLimit) == Wait::Reached : workers_[queue]->reached() >= tick);
      }
      if (reached) failures += !pool.complete_free(serial), serial = 0;
    }
    while (!pending_.empty() && pending_.front().serial == 0) pending_.pop_front();
  }

  Pool pool;
  std::atomic<bool> stopped{false};
  std::atomic<int> failures{0}, impossible{0}, transfers{0};

 private:
  struct PendingFree {
    uint64_t serial;  // 0 once completed
    std::vector<std::pair<uint64_t, uint64_t>> ticks;
  };

  void transfer(Block* from, Block* to, size_t nbytes, size_t mine, size_t other, int byte) {
    auto* source = reinterpret_cast<char*>(from->address);
    auto* target = reinterpret_cast<char*>(to->address);
    workers_[mine]->fill(source, byte, nbytes);
    const uint64_t filled = workers_[mine]->signal();
    failures += !workers_[other]->wait_for(workers_[mine]->timeline(), filled);
    workers_[other]->copy(target, source, nbytes);
    pool.record_stream(from, other);  // freed while the copy may be running
    ++transfers;
    if (nbytes % 4) return;
    failures += workers_[other]->wait(workers_[other]->signal(), kLimit) != Wait::Reached;
    for (size_t at : {size_t{0}, nbytes / 2, nbytes - 1}) failures += target[at] != static_cast<char>(byte);
  }

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<std::pair<uint64_t, uint64_t>> segments_;  // address and queue
  std::mutex mutex_;                                     // of pending_
  std::deque<PendingFree> pending_;
};

}  // namespace

TEST(pool_queues_and_history_are_used_concurrently) {
  Runtime runtime;
  std::vector<std::thread> users, others;
  for (size_t number = 0; number < kThreads; ++number) users.emplace_back([&, number] { runtime.use(number); });
  others.emplace_back([&] { runtime.observe(); });
  others.emplace_back([&] { runtime.move_segments(); });
  for (std::thread& thread : users) thread.join();
  runtime.stopped = true;
  for (std::thread& thread : others) thread.join();
  runtime.complete_frees(true);
  CHECK(runtime.failures == 0);
  CHECK(runtime.impossible == 0);
  CHECK(runtime.transfers > int{kThreads * kSteps / 4});
  CHECK(runtime.pool.check_invariants() == nullptr);
  CHECK(runtime.pool.count(kActive, kAllSizes).current == 0);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
