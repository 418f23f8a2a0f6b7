// The queue's life as small stories; their number makes the lines. None sleeps: gates hold a queue, limits end waits.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "pool/check.hpp"
#include "queue/worker.hpp"

using namespace forebay;

static std::atomic<long> allocations{0};

// Not inlined, or the compiler sees malloc where it looks for operator new.
[[gnu::noinline]] void* operator new(size_t nbytes) {
  ++allocations;
  if (void* memory = std::malloc(nbytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr int64_t kLimit = 20'000'000'000;  // no wait lasts longer, so a broken queue fails and does not hang
constexpr int64_t kMoment = 2'000'000;      // for waits that are to run out

bool reaches(Worker& queue, uint64_t tick) { return queue.wait(tick, kLimit) == Wait::Reached; }
bool finishes(Worker& queue) { return reaches(queue, queue.signal()); }
template <class Ready>
bool soon(Ready ready) {
  return spin_until(kLimit, [&] { return std::this_thread::yield(), ready(); });
}

// Work that holds its queue until the test opens it, or leaves.
struct Gate {
  std::atomic<bool> placed{false}, entered{false}, open{false}, passed{false};

  Gate() = default;
  explicit Gate(Worker& queue) {
    place(queue);
    CHECK(is_entered());
  }
  ~Gate() {
    open = true;
    soon([&] { return passed == placed; });
  }
  void place(Worker& queue) {
    queue.run(pass, this);
    placed = true;
  }
  bool is_entered() {
    return soon([&] { return entered.load(); });
  }
  static int pass(void* argument) {
    auto& gate = *static_cast<Gate*>(argument);
    gate.entered = true;
    soon([&] { return gate.open.load(); });
    gate.passed = true;
    return 0;
  }
};

int count(void* counter) {
  ++*static_cast<std::atomic<int>*>(counter);
  return 0;
}
int fail(void* code) { return *static_cast<int*>(code); }

// What a forked child returns as its exit status, or -1.
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

TEST(a_wait_gives_up_at_its_limit) {
  Worker queue;
  Gate gate(queue);
  const uint64_t tick = queue.signal();
  CHECK(queue.wait(tick, 0) == Wait::TimedOut);
  CHECK(queue.wait(tick, kMoment) == Wait::TimedOut);
  CHECK(!queue.soon(tick));
  gate.open = true;
  CHECK(queue.wait(tick, std::numeric_limits<int64_t>::max()) == Wait::Reached);
  CHECK(queue.soon(tick));
}

TEST(many_waiters_wake_at_their_ticks) {
  Worker queue;
  Gate gate(queue);
  std::array<uint64_t, 6> ticks;
  for (uint64_t& tick : ticks) tick = queue.signal();
  std::atomic<int> woken{0};
  std::vector<std::thread> waiters;
  for (uint64_t tick : ticks) waiters.emplace_back([&, tick] { woken += reaches(queue, tick); });
  CHECK(queue.wait(ticks[0], kMoment) == Wait::TimedOut);
  gate.open = true;
  for (std::thread& waiter : waiters) waiter.join();
  CHECK(woken == 6);
}

TEST(a_sleeping_queue_wakes) {
  Worker queue;
  for (int round = 0; round < 100; ++round) {
    CHECK(finishes(queue));
    spin_until(kSpinNanos * (round % 4), [] { return false; });  // awake, falling asleep and asleep
  }
}

TEST(a_queue_waits_for_another) {
  std::atomic<int> done{0};
  Worker first, second;
  Gate gate(first);
  CHECK(second.wait_for(first.timeline(), first.signal()));
  second.run(count, &done);
  const uint64_t tick = second.signal();
  CHECK(second.wait(tick, kMoment) == Wait::TimedOut);
  CHECK(done == 0);
  gate.open = true;
  CHECK(reaches(second, tick));
  CHECK(done == 1);
  CHECK(!second.failed());
}

TEST(two_queues_play_ping_pong) {
  struct Hit {
    std::vector<int>* ball;
    static int run(void* argument) {
      auto& ball = *static_cast<Hit*>(argument)->ball;  // no lock: the waits order the hits
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

TEST(a_tick_nobody_signalled_is_refused) {
  Worker first, second;
  CHECK(first.wait(1, kLimit) == Wait::Never);
  CHECK(!second.wait_for(first.timeline(), 1));
  const uint64_t tick = first.signal();
  CHECK(second.wait_for(first.timeline(), tick));
  CHECK(!second.wait_for(first.timeline(), tick + 1));
  CHECK(first.wait_for(first.timeline(), tick));
  CHECK(!first.wait_for(first.timeline(), tick + 1));
}

TEST(a_queue_does_not_wait_for_itself) {
  struct Scene {
    Worker queue;
    std::atomic<bool> open{false};
    Wait waited = Wait::Reached;
    bool closed = true;
    static int run(void* argument) {
      auto& scene = *static_cast<Scene*>(argument);
      soon([&] { return scene.open.load(); });
      scene.waited = scene.queue.wait(1, kLimit);
      scene.closed = scene.queue.close(kLimit);
      return 0;
    }
  } scene;
  std::atomic<int> done{0};
  scene.queue.run(Scene::run, &scene);
  scene.queue.run(count, &done);
  const uint64_t tick = scene.queue.signal();
  scene.open = true;
  CHECK(reaches(scene.queue, tick));
  CHECK(scene.waited == Wait::Never);
  CHECK(!scene.closed);
  CHECK(done == 1);
  CHECK(scene.queue.close(kLimit));
}

TEST(the_first_failure_is_kept_and_work_goes_on) {
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

TEST(a_host_call_is_pending_until_it_has_run) {
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

TEST(marks_increase) {
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

TEST(a_log_knows_when_work_ran) {
  Worker queue;
  char byte = 0;
  queue.fill(&byte, 1, 1);
  const uint64_t before = queue.given();
  const auto log = queue.log(2), more = queue.log(100);
  CHECK(before == 1);
  const int64_t asked = steady_nanos();
  {
    Gate gate(queue);
    CHECK(queue.given() == 2 && more->times(2).first != 0 && more->times(2).second == 0);
    CHECK(more->times(3).first == 0);
    for (int i = 0; i < 2; ++i) queue.fill(&byte, 1, 1);
  }
  CHECK(reaches(queue, queue.signal()) && queue.given() == 4);
  int64_t last = asked;
  for (uint64_t number = 2; number <= 4; ++number) {
    const auto [begin, end] = more->times(number);
    CHECK(last <= begin && begin <= end);
    last = end;
  }
  CHECK(last <= steady_nanos());
  CHECK(log->times(2).first == 0 && log->times(3) == more->times(3) && log->times(5).first == 0);  // two are kept
}

TEST(four_threads_queue_a_hundred_thousand) {
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

TEST(a_steady_state_allocates_nothing) {
  Worker queue;
  std::array<char, 64> from{}, to{};
  const auto round = [&] {
    Gate gate(queue);
    for (int i = 0; i < 1000; ++i) queue.copy(to.data(), from.data(), from.size());
    gate.open = true;
    return finishes(queue);
  };
  for (int i = 0; i < 9; ++i) CHECK(round());  // three rooms rotate, each grows to what it has to hold
  const long before = allocations;
  for (int i = 0; i < 9; ++i) CHECK(round());
  CHECK(allocations == before);
}

TEST(close_finishes_what_is_queued_and_twice_is_once) {
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
  const auto refuses = [](auto call) { return check::refusal(call) == "queue 3 was closed"; };
  CHECK(refuses([&] { queue.copy(&byte, &byte, 1); }));
  CHECK(refuses([&] { queue.fill(&byte, 1, 1); }));
  CHECK(refuses([&] { queue.run(count, &done); }));
  CHECK(refuses([&] { queue.wait_for(queue.timeline(), tick); }));
  CHECK(refuses([&] { queue.signal(); }));
  CHECK(refuses([&] { queue.mark(); }));
  CHECK(idle.close(0));
}

TEST(a_queue_is_idle_when_all_is_done) {
  std::atomic<int> done{0};
  Worker queue;
  CHECK(queue.idle());
  {
    Gate gate(queue);
    CHECK(!queue.idle());
  }
  CHECK(soon([&] { return queue.idle(); }));
  for (int i = 0; i < 50; ++i) {
    queue.run(count, &done);
    CHECK(finishes(queue));
    CHECK(queue.idle());  // at once: a tick reached leaves nothing to wait for
  }
}

TEST(a_queue_that_has_finished_closes_at_once) {
  for (int i = 0; i < 50; ++i) {
    Worker queue;
    CHECK(finishes(queue));
    CHECK(queue.close(0));
  }
}

TEST(two_threads_close_at_once) {
  Worker queue;
  Gate gate(queue);
  std::atomic<int> clean{0};
  std::thread first([&] { clean += queue.close(kLimit); }), second([&] { clean += queue.close(kLimit); });
  CHECK(soon([&] { return queue.closed(); }));
  gate.open = true;
  first.join();
  second.join();
  CHECK(clean == 2);
}

TEST(close_past_its_limit_drops_the_rest) {
  std::atomic<int> done{0}, outcome{0};
  std::vector<void*> dropped;
  Worker queue, other;
  Gate first(queue), gate;
  gate.place(queue);
  for (int i = 0; i < 50; ++i) queue.run(count, &done, i % 2);
  first.open = true;
  CHECK(gate.is_entered());  // the thread has taken these 50 already, and not begun them
  for (int i = 0; i < 100; ++i) queue.run(count, &done, i % 4 == 0);
  const auto mark = queue.mark();
  CHECK(other.wait_for(queue.timeline(), mark->tick));
  other.run(count, &outcome);
  const uint64_t after = other.signal();
  std::thread waiter([&] { outcome += 10 * (queue.wait(mark->tick, kLimit) == Wait::Never); });

  CHECK(!queue.close(kMoment, &dropped));
  waiter.join();
  CHECK(done == 0);
  CHECK(dropped == std::vector<void*>(50, &done));  // the host-language calls', 25 of them taken and 25 waiting
  CHECK(!queue.calls_pending());
  CHECK(queue.timeline()->ended());
  CHECK(mark->nanoseconds == 0);
  CHECK(reaches(other, after));  // the other queue is released, is told, and goes on
  CHECK(outcome == 11);
  CHECK(other.take_failure().cause == Failure::LostQueue);
  CHECK(!other.wait_for(queue.timeline(), mark->tick));
  CHECK(!queue.close(kLimit));
  gate.open = true;
  CHECK(soon([&] { return gate.passed.load(); }));  // its thread comes back to shared state only
  CHECK(queue.reached() == 0);
}

TEST(close_past_its_limit_ends_a_wait_for_another_queue) {
  std::atomic<int> done{0};
  std::vector<void*> dropped;
  Worker stuck;
  auto waiting = std::make_unique<Worker>();
  const std::weak_ptr<Timeline> thread = waiting->timeline();  // its thread has a share in it
  Gate gate(stuck);
  waiting->wait_for(stuck.timeline(), stuck.signal());
  waiting->run(count, &done, true);
  CHECK(!waiting->close(kMoment, &dropped));
  CHECK(dropped.size() == 1 && done == 0);
  CHECK(waiting->take_failure().cause == Failure::None);
  waiting.reset();
  CHECK(soon([&] { return thread.expired(); }));
}

TEST(close_joins) {
  for (int i = 0; i < 20; ++i) {
    auto queue = std::make_unique<Worker>();
    const std::weak_ptr<Timeline> thread = queue->timeline();
    queue->signal();
    CHECK(queue->close(kLimit));
    queue.reset();
    CHECK(thread.expired());
  }
}

TEST(a_queue_destroyed_while_another_waits_finishes_first) {
  std::atomic<int> done{0};
  auto queue = std::make_unique<Worker>();
  Worker other;
  Gate gate(*queue);
  queue->run(count, &done);
  CHECK(other.wait_for(queue->timeline(), queue->signal()));
  queue.reset();
  const uint64_t tick = other.signal();
  CHECK(other.wait(tick, kMoment) == Wait::TimedOut);
  gate.open = true;
  CHECK(reaches(other, tick));
  CHECK(done == 1);
  CHECK(!other.failed());
}

TEST(a_queue_may_be_destroyed_on_its_own_thread) {
  struct Scene {
    Worker* queue;
    std::atomic<bool> open{false}, gone{false};
    static int run(void* argument) {
      auto& scene = *static_cast<Scene*>(argument);
      soon([&] { return scene.open.load(); });
      delete scene.queue;
      scene.gone = true;
      return 0;
    }
  } scene{new Worker};
  const auto timeline = scene.queue->timeline();
  scene.queue->run(Scene::run, &scene);
  const uint64_t tick = scene.queue->signal();
  scene.open = true;
  CHECK(timeline->wait(tick, kLimit) == Wait::Reached);
  CHECK(scene.gone);
}

TEST(priority_is_a_niceness_within_five) {
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

TEST(a_forked_child_is_refused_and_never_hangs) {
  std::atomic<int> done{0};
  auto* queue = new Worker(7);
  CHECK(finishes(*queue));
  Gate gate(*queue);
  queue->run(count, &done);
  const uint64_t tick = queue->signal();
  std::thread waiter([&] { reaches(*queue, tick); });  // asleep on the timeline while we fork, as likely as not
  CHECK(queue->wait(tick, kMoment) == Wait::TimedOut);

  const int status = in_child([&] {
    const auto refuses = [](auto call) {
      return check::refusal(call) == "queue 7 belongs to the process this one was forked from";
    };
    if (queue->alive() || queue->failed()) return 1;
    if (!refuses([&] { queue->signal(); }) || !refuses([&] { queue->mark(); })) return 1;
    if (!refuses([&] { queue->run(count, &done); })) return 1;
    if (!refuses([&] { queue->wait_for(queue->timeline(), 1); })) return 1;
    if (queue->wait(tick, kForever) != Wait::Never || queue->wait(1, kForever) != Wait::Reached) return 2;
    if (queue->close(kForever) || queue->take_failure().cause != Failure::None) return 3;
    const auto timeline = queue->timeline();
    delete queue;
#ifndef __SANITIZE_THREAD__  // it refuses to start threads in the child of a process that had some
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
  CHECK(queue->close(kLimit));  // the parent has noticed nothing
  delete queue;
}

TEST(work_that_forks_leaves_the_rest_to_the_parent) {
  const auto forks = [](void* status) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::atexit([] { _exit(42); });  // the child's only thread returns into the queue, which ends it and the process
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

TEST(an_abandoned_queue_is_left_alone) {
  const int status = in_child([] {
    auto* queue = new Worker;
    queue->abandon();
    if (queue->alive() || queue->close(kForever)) return 1;
    if (check::refusal([&] { queue->signal(); }).empty()) return 1;
    delete queue;
    return 42;
  });
  CHECK(status == 42);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
