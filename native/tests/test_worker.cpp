// Tests of in-order queues. No test sleeps: gates hold queues, and timeouts end all waits.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "queue/worker.hpp"
#include "tests/check.hpp"

using namespace forebay;

static std::atomic<long> allocations{0};

// Not inlined, else the compiler reports mismatched allocation functions.
[[gnu::noinline]] void* operator new(size_t nbytes) {
  ++allocations;
  if (void* memory = std::malloc(nbytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr int64_t kLimit = 20'000'000'000;  // of all waits, so that a broken queue fails instead of hanging
constexpr int64_t kShort = 2'000'000;       // for waits that must time out

bool reaches(Worker& queue, uint64_t tick) { return queue.wait(tick, kLimit) == Wait::Reached; }
bool finishes(Worker& queue) { return reaches(queue, queue.signal()); }
template <class Ready>
bool becomes_true(Ready ready) {
  return spin_until(kLimit, [&] { return std::this_thread::yield(), ready(); });
}

// Work that blocks its queue until the test opens the gate or destroys it.
struct Gate {
  std::atomic<bool> placed{false}, entered{false}, open{false}, passed{false};

  Gate() = default;
  explicit Gate(Worker& queue) {
    place(queue);
    CHECK(is_entered());
  }
  ~Gate() {
    open = true;
    becomes_true([&] { return passed == placed; });
  }
  void place(Worker& queue) {
    queue.run(pass, this);
    placed = true;
  }
  bool is_entered() {
    return becomes_true([&] { return entered.load(); });
  }
  static int pass(void* argument) {
    auto& gate = *static_cast<Gate*>(argument);
    gate.entered = true;
    becomes_true([&] { return gate.open.load(); });
    gate.passed = true;
    return 0;
  }
};

int count(void* counter) {
  ++*static_cast<std::atomic<int>*>(counter);
  return 0;
}
int fail(void* code) { return *static_cast<int*>(code); }

// Runs `body` in a forked child. Returns the exit status, or -1.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body());
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST(work_runs_in_order) {
  struct Step {
    std::vector<int>* seen;
    int number;
    static int run(void* argument) {
      auto& step = *static_cast<Step*>(argument);
      step.seen->push_back(step.number);
      return 0;
    }
  };
  std::vector<int> seen, expected;
  std::vector<Step> steps;
  for (int i = 0; i < 1000; ++i) steps.push_back({&seen, i}), expected.push_back(i);
  Worker queue;
  for (Step& step : steps) queue.run(Step::run, &step);
  CHECK(finishes(queue));
  CHECK(seen == expected);
}

TEST(copies_and_fills_move_bytes) {
  std::vector<char> first(1 << 20), second(1 << 20), third(1 << 20);
  Worker queue;
  queue.fill(first.data(), 7, first.size());
  queue.copy(second.data(), first.data(), first.size());
  queue.fill(first.data(), 9, first.size());
  queue.copy(third.data(), second.data(), second.size());
  CHECK(finishes(queue));
  CHECK(third == std::vector<char>(1 << 20, 7));
}

TEST(ticks_count_from_one) {
  Worker queue;
  CHECK(queue.reached() == 0);
  CHECK(queue.wait(0, 0) == Wait::Reached);
  Gate gate(queue);
  CHECK(queue.signal() == 1);
  CHECK(queue.signal() == 2);
  CHECK(queue.reached() == 0);
  gate.open = true;
  CHECK(reaches(queue, 2));
  CHECK(queue.reached() == 2);
}

TEST(wait_times_out) {
  Worker queue;
  Gate gate(queue);
  const uint64_t tick = queue.signal();
  CHECK(queue.wait(tick, 0) == Wait::TimedOut);
  CHECK(queue.wait(tick, kShort) == Wait::TimedOut);
  CHECK(!queue.reached_soon(tick));
  gate.open = true;
  CHECK(queue.wait(tick, std::numeric_limits<int64_t>::max()) == Wait::Reached);
  CHECK(queue.reached_soon(tick));
}

TEST(waiters_wake_at_their_ticks) {
  Worker queue;
  Gate gate(queue);
  std::array<uint64_t, 6> ticks;
  for (uint64_t& tick : ticks) tick = queue.signal();
  std::atomic<int> woken{0};
  std::vector<std::thread> waiters;
  for (uint64_t tick : ticks) waiters.emplace_back([&, tick] { woken += reaches(queue, tick); });
  CHECK(queue.wait(ticks[0], kShort) == Wait::TimedOut);
  gate.open = true;
  for (std::thread& waiter : waiters) waiter.join();
  CHECK(woken == 6);
}

TEST(sleeping_queue_wakes_for_work) {
  Worker queue;
  for (int round = 0; round < 100; ++round) {
    CHECK(finishes(queue));
    spin_until(kSpinNanos * (round % 4), [] { return false; });  // while awake, falling asleep and asleep
  }
}

TEST(queue_waits_for_another_queue) {
  std::atomic<int> done{0};
  Worker first, second;
  Gate gate(first);
  CHECK(second.wait_for(first.timeline(), first.signal()));
  second.run(count, &done);
  const uint64_t tick = second.signal();
  CHECK(second.wait(tick, kShort) == Wait::TimedOut);
  CHECK(done == 0);
  gate.open = true;
  CHECK(reaches(second, tick));
  CHECK(done == 1);
  CHECK(!second.failed());
}

TEST(alternating_waits_order_two_queues) {
  struct Hit {
    std::vector<int>* ball;
    static int run(void* argument) {
      auto& ball = *static_cast<Hit*>(argument)->ball;  // no lock: the waits order the accesses
      ball.push_back(static_cast<int>(ball.size()));
      return 0;
    }
  };
  std::vector<int> ball;
  Hit hit{&ball};
  Worker ping, pong;
  for (int round = 0; round < 500; ++round) {
    ping.run(Hit::run, &hit);
    CHECK(pong.wait_for(ping.timeline(), ping.signal()));
    pong.run(Hit::run, &hit);
    CHECK(ping.wait_for(pong.timeline(), pong.signal()));
  }
  CHECK(finishes(ping));
  CHECK(ball.size() == 1000);
}

TEST(waiting_for_unsignalled_tick_is_rejected) {
  Worker first, second;
  CHECK(first.wait(1, kLimit) == Wait::Never);
  CHECK(!second.wait_for(first.timeline(), 1));
  const uint64_t tick = first.signal();
  CHECK(second.wait_for(first.timeline(), tick));
  CHECK(!second.wait_for(first.timeline(), tick + 1));
  CHECK(first.wait_for(first.timeline(), tick));
  CHECK(!first.wait_for(first.timeline(), tick + 1));
}

TEST(queue_does_not_wait_for_itself) {
  struct Fixture {
    Worker queue;
    std::atomic<bool> open{false};
    Wait waited = Wait::Reached;
    bool closed = true;
    static int run(void* argument) {
      auto& fixture = *static_cast<Fixture*>(argument);
      becomes_true([&] { return fixture.open.load(); });
      fixture.waited = fixture.queue.wait(1, kLimit);
      fixture.closed = fixture.queue.close(kLimit);
      return 0;
    }
  } fixture;
  std::atomic<int> done{0};
  fixture.queue.run(Fixture::run, &fixture);
  fixture.queue.run(count, &done);
  const uint64_t tick = fixture.queue.signal();
  fixture.open = true;
  CHECK(reaches(fixture.queue, tick));
  CHECK(fixture.waited == Wait::Never);
  CHECK(!fixture.closed);
  CHECK(done == 1);
  CHECK(fixture.queue.close(kLimit));
}

TEST(first_failure_is_kept_and_work_continues) {
  int seven = 7, nine = 9;
  std::atomic<int> done{0};
  Worker queue;
  queue.signal();
  queue.run(fail, &seven);
  queue.signal();
  queue.run(fail, &nine);
  queue.run(count, &done);
  CHECK(finishes(queue));
  CHECK(queue.failed());
  const Failure failure = queue.take_failure();
  CHECK(failure.cause == Failure::Code);
  CHECK(failure.code == 7);
  CHECK(failure.tick == 2);
  CHECK(done == 1);
  CHECK(!queue.failed());
  CHECK(queue.take_failure().cause == Failure::None);
}

TEST(host_call_is_pending_until_it_has_run) {
  int code = -1;
  Worker queue;
  CHECK(!queue.calls_pending());
  Gate gate(queue);
  CHECK(!queue.calls_pending());
  queue.run(fail, &code, true);
  CHECK(queue.calls_pending());
  gate.open = true;
  CHECK(finishes(queue));
  CHECK(!queue.calls_pending());
  CHECK(queue.take_failure().cause == Failure::HostCall);
}

TEST(mark_times_increase) {
  Worker queue;
  const auto start = queue.mark();
  CHECK(reaches(queue, start->tick));
  Gate gate(queue);
  const auto end = queue.mark();
  CHECK(start->tick == 1);
  CHECK(end->tick == 2);
  CHECK(start->nanoseconds > 0);
  CHECK(end->nanoseconds == 0);
  gate.open = true;
  CHECK(reaches(queue, end->tick));
  CHECK(end->nanoseconds > start->nanoseconds);
  CHECK(end->nanoseconds <= steady_nanos());
}

TEST(log_records_work_times) {
  Worker queue;
  char byte = 0;
  queue.fill(&byte, 1, 1);
  const uint64_t before = queue.submitted();
  const auto log = queue.log(2), long_log = queue.log(100);
  CHECK(before == 1);
  const int64_t start = steady_nanos();
  {
    Gate gate(queue);
    CHECK(queue.submitted() == 2 && long_log->times(2).first != 0 && long_log->times(2).second == 0);
    CHECK(long_log->times(3).first == 0);
    for (int i = 0; i < 2; ++i) queue.fill(&byte, 1, 1);
  }
  CHECK(reaches(queue, queue.signal()) && queue.submitted() == 4);
  int64_t last = start;
  for (uint64_t number = 2; number <= 4; ++number) {
    const auto [begin, end] = long_log->times(number);
    CHECK(last <= begin && begin <= end);
    last = end;
  }
  CHECK(last <= steady_nanos());
  CHECK(log->times(2).first == 0 && log->times(3) == long_log->times(3) &&
        log->times(5).first == 0);  // the log keeps two
}

TEST(concurrent_submission_keeps_each_threads_order) {
  struct Turn {
    int* last;
    int number;
    std::atomic<int>* disorder;
    static int run(void* argument) {
      auto& turn = *static_cast<Turn*>(argument);
      *turn.disorder += *turn.last + 1 != turn.number;
      *turn.last = turn.number;
      return 0;
    }
  };
  constexpr int kEach = 25'000;
  std::atomic<int> disorder{0};
  std::array<int, 4> last{};
  std::array<std::vector<Turn>, 4> turns;
  for (size_t t = 0; t < 4; ++t) {
    for (int i = 1; i <= kEach; ++i) turns[t].push_back({&last[t], i, &disorder});
  }
  Worker queue;
  std::vector<std::thread> threads;
  for (auto& mine : turns) {
    threads.emplace_back([&] {
      for (Turn& turn : mine) queue.run(Turn::run, &turn);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(finishes(queue));
  CHECK(disorder == 0);
  CHECK((last == std::array<int, 4>{kEach, kEach, kEach, kEach}));
}

TEST(steady_state_does_not_allocate) {
  Worker queue;
  std::array<char, 64> from{}, to{};
  const auto round = [&] {
    Gate gate(queue);
    for (int i = 0; i < 1000; ++i) queue.copy(to.data(), from.data(), from.size());
    gate.open = true;
    return finishes(queue);
  };
  for (int i = 0; i < 9; ++i) CHECK(round());  // three buffers rotate, and each grows to its final size
  const long before = allocations;
  for (int i = 0; i < 9; ++i) CHECK(round());
  CHECK(allocations == before);
}

TEST(close_finishes_work_and_is_idempotent) {
  std::atomic<int> done{0};
  char byte = 0;
  Worker queue(3), idle;
  for (int i = 0; i < 100; ++i) queue.run(count, &done);
  const uint64_t tick = queue.signal();
  CHECK(!queue.closed());
  CHECK(queue.close(kLimit));
  CHECK(queue.close(kLimit));
  CHECK(queue.closed());
  CHECK(done == 100);
  CHECK(queue.wait(tick, 0) == Wait::Reached);
  const auto is_rejected = [](auto call) { return check::error_of(call) == "queue 3 was closed"; };
  CHECK(is_rejected([&] { queue.copy(&byte, &byte, 1); }));
  CHECK(is_rejected([&] { queue.fill(&byte, 1, 1); }));
  CHECK(is_rejected([&] { queue.run(count, &done); }));
  CHECK(is_rejected([&] { queue.wait_for(queue.timeline(), tick); }));
  CHECK(is_rejected([&] { queue.signal(); }));
  CHECK(is_rejected([&] { queue.mark(); }));
  CHECK(idle.close(0));
}

TEST(queue_is_idle_when_work_is_done) {
  std::atomic<int> done{0};
  Worker queue;
  CHECK(queue.idle());
  {
    Gate gate(queue);
    CHECK(!queue.idle());
  }
  CHECK(becomes_true([&] { return queue.idle(); }));
  for (int i = 0; i < 50; ++i) {
    queue.run(count, &done);
    CHECK(finishes(queue));
    CHECK(queue.idle());  // immediately after the tick is reached
  }
}

TEST(finished_queue_closes_immediately) {
  for (int i = 0; i < 50; ++i) {
    Worker queue;
    CHECK(finishes(queue));
    CHECK(queue.close(0));
  }
}

TEST(concurrent_close_succeeds_twice) {
  Worker queue;
  Gate gate(queue);
  std::atomic<int> clean{0};
  std::thread first([&] { clean += queue.close(kLimit); }), second([&] { clean += queue.close(kLimit); });
  CHECK(becomes_true([&] { return queue.closed(); }));
  gate.open = true;
  first.join();
  second.join();
  CHECK(clean == 2);
}

TEST(close_timeout_discards_remaining_work) {
  std::atomic<int> done{0}, outcome{0};
  std::vector<void*> dropped;
  Worker queue, other;
  Gate first(queue), gate;
  gate.place(queue);
  for (int i = 0; i < 50; ++i) queue.run(count, &done, i % 2);
  first.open = true;
  CHECK(gate.is_entered());  // the thread has these 50 in its batch, but has not started them
  for (int i = 0; i < 100; ++i) queue.run(count, &done, i % 4 == 0);
  const auto mark = queue.mark();
  CHECK(other.wait_for(queue.timeline(), mark->tick));
  other.run(count, &outcome);
  const uint64_t after = other.signal();
  std::thread waiter([&] { outcome += 10 * (queue.wait(mark->tick, kLimit) == Wait::Never); });

  CHECK(!queue.close(kShort, &dropped));
  waiter.join();
  CHECK(done == 0);
  CHECK(dropped == std::vector<void*>(50, &done));  // of the host-language calls: 25 in the batch, 25 in the inbox
  CHECK(!queue.calls_pending());
  CHECK(queue.timeline()->ended());
  CHECK(mark->nanoseconds == 0);
  CHECK(reaches(other, after));  // the other queue's wait fails, and it continues
  CHECK(outcome == 11);
  CHECK(other.take_failure().cause == Failure::LostQueue);
  CHECK(!other.wait_for(queue.timeline(), mark->tick));
  CHECK(!queue.close(kLimit));
  gate.open = true;
  CHECK(becomes_true([&] { return gate.passed.load(); }));  // its thread returns to shared state only
  CHECK(queue.reached() == 0);
}

TEST(close_timeout_ends_wait_for_another_queue) {
  std::atomic<int> done{0};
  std::vector<void*> dropped;
  Worker stuck;
  auto waiting = std::make_unique<Worker>();
  const std::weak_ptr<Timeline> thread = waiting->timeline();  // shared with the queue's thread
  Gate gate(stuck);
  waiting->wait_for(stuck.timeline(), stuck.signal());
  waiting->run(count, &done, true);
  CHECK(!waiting->close(kShort, &dropped));
  CHECK(dropped.size() == 1 && done == 0);
  CHECK(waiting->take_failure().cause == Failure::None);
  waiting.reset();
  CHECK(becomes_true([&] { return thread.expired(); }));
}

TEST(close_joins_the_thread) {
  for (int i = 0; i < 20; ++i) {
    auto queue = std::make_unique<Worker>();
    const std::weak_ptr<Timeline> thread = queue->timeline();
    queue->signal();
    CHECK(queue->close(kLimit));
    queue.reset();
    CHECK(thread.expired());
  }
}

TEST(destroyed_queue_finishes_for_waiting_queue) {
  std::atomic<int> done{0};
  auto queue = std::make_unique<Worker>();
  Worker other;
  Gate gate(*queue);
  queue->run(count, &done);
  CHECK(other.wait_for(queue->timeline(), queue->signal()));
  queue.reset();
  const uint64_t tick = other.signal();
  CHECK(other.wait(tick, kShort) == Wait::TimedOut);
  gate.open = true;
  CHECK(reaches(other, tick));
  CHECK(done == 1);
  CHECK(!other.failed());
}

TEST(queue_may_be_destroyed_on_its_own_thread) {
  struct Fixture {
    Worker* queue;
    std::atomic<bool> open{false}, destroyed{false};
    static int run(void* argument) {
      auto& fixture = *static_cast<Fixture*>(argument);
      becomes_true([&] { return fixture.open.load(); });
      delete fixture.queue;
      fixture.destroyed = true;
      return 0;
    }
  } fixture{new Worker};
  const auto timeline = fixture.queue->timeline();
  fixture.queue->run(Fixture::run, &fixture);
  const uint64_t tick = fixture.queue->signal();
  fixture.open = true;
  CHECK(timeline->wait(tick, kLimit) == Wait::Reached);
  CHECK(fixture.destroyed);
}

TEST(priority_is_clamped_niceness) {
  const auto niceness = [](void* seen) {
    *static_cast<int*>(seen) = getpriority(PRIO_PROCESS, 0);
    return 0;
  };
  int plain = 99, low = 99, high = 99;
  Worker usual, patient(0, 100), urgent(0, -100);
  usual.run(niceness, &plain);
  patient.run(niceness, &low);
  urgent.run(niceness, &high);
  CHECK(finishes(usual) && finishes(patient) && finishes(urgent));
#ifdef __linux__
  CHECK(low == std::min(plain + 5, 19));
  CHECK(high <= plain);
#endif
}

TEST(forked_child_is_rejected_and_does_not_hang) {
  std::atomic<int> done{0};
  auto* queue = new Worker(7);
  CHECK(finishes(*queue));
  Gate gate(*queue);
  queue->run(count, &done);
  const uint64_t tick = queue->signal();
  std::thread waiter([&] { reaches(*queue, tick); });  // probably asleep on the timeline during the fork
  CHECK(queue->wait(tick, kShort) == Wait::TimedOut);

  const int status = in_child([&] {
    const auto is_rejected = [](auto call) {
      return check::error_of(call) == "queue 7 belongs to the process this one was forked from";
    };
    if (queue->alive() || queue->failed()) return 1;
    if (!is_rejected([&] { queue->signal(); }) || !is_rejected([&] { queue->mark(); })) return 1;
    if (!is_rejected([&] { queue->run(count, &done); })) return 1;
    if (!is_rejected([&] { queue->wait_for(queue->timeline(), 1); })) return 1;
    if (queue->wait(tick, kForever) != Wait::Never || queue->wait(1, kForever) != Wait::Reached) return 2;
    if (queue->close(kForever) || queue->take_failure().cause != Failure::None) return 3;
    const auto timeline = queue->timeline();
    delete queue;
#ifndef __SANITIZE_THREAD__  // TSan cannot start threads in the child of a multithreaded process
    Worker fresh;
    if (fresh.wait_for(timeline, tick) || !fresh.wait_for(timeline, 1)) return 4;
    fresh.run(count, &done);
    if (!finishes(fresh) || !fresh.close(kLimit)) return 5;
    return done == 1 ? 42 : 6;
#else
    return 42;
#endif
  });
  CHECK(status == 42);

  gate.open = true;
  waiter.join();
  CHECK(done == 1);
  CHECK(queue->close(kLimit));  // the parent is unaffected
  delete queue;
}

TEST(forking_work_leaves_remaining_work_to_parent) {
  const auto forks = [](void* status) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::atexit([] {
        _exit(42);
      });  // the child's only thread returns into the queue, which ends the thread and so the process
      return 0;
    }
    return waitpid(child, static_cast<int*>(status), 0) == child ? 0 : 1;
  };
  const auto for_the_parent = [](void* parent) {
    if (getpid() != *static_cast<pid_t*>(parent)) _exit(13);
    return 0;
  };
  int status = -1;
  pid_t parent = getpid();
  Worker queue;
  Gate gate(queue);
  queue.run(forks, &status);
  queue.run(for_the_parent, &parent);
  const uint64_t tick = queue.signal();
  gate.open = true;
  CHECK(reaches(queue, tick));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

TEST(queue_continues_in_child) {
  std::atomic<int> done{0};
  Worker queue(7);
  queue.run(count, &done);
  const uint64_t tick = queue.signal();
  CHECK(reaches(queue, tick));

  const int status = in_child([&] {
    queue.continue_in_child();
    if (!queue.alive() || queue.failed() || !queue.idle() || queue.reached() != tick) return 1;
    if (queue.submitted() != 1 || queue.wait(tick, kForever) != Wait::Reached) return 2;
    if (!queue.wait_for(queue.timeline(), tick) || queue.wait_for(queue.timeline(), tick + 1)) return 3;
#ifndef __SANITIZE_THREAD__  // TSan cannot start threads in the child of a multithreaded process
    queue.run(count, &done);
    if (queue.signal() != tick + 1 || !finishes(queue) || done != 2) return 4;
    if (!queue.close(kLimit)) return 5;
    queue.continue_in_child();
    if (!queue.closed() || !queue.close(kLimit)) return 6;
#endif
    return 42;
  });
  CHECK(status == 42);
  CHECK(done == 1);
  CHECK(finishes(queue));  // the parent is unaffected
}

TEST(queue_that_continues_in_child_reports_lost_work) {
  std::atomic<int> done{0};
  Worker queue;
  Gate gate(queue);
  queue.run(count, &done);
  const uint64_t tick = queue.signal();
  const int status = in_child([&] {
    queue.continue_in_child();
    if (queue.wait(tick, kForever) != Wait::Reached || done != 0) return 1;
    if (!queue.failed() || queue.take_failure().code != kLostWork || queue.failed()) return 2;
    return 42;
  });
  CHECK(status == 42);
  gate.open = true;
  CHECK(reaches(queue, tick));
  CHECK(done == 1 && !queue.failed());
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
