// Tests of shared slots between threads and processes, and of pausing queues. No test sleeps: timeouts end all waits.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "queue/shared_slot.hpp"
#include "queue/worker.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr int64_t kLimit = 20'000'000'000;
constexpr int64_t kShort = 2'000'000;

uint64_t process_id() { return static_cast<uint64_t>(getpid()); }
void reach(Slot* slot, uint64_t word) { forebay_reach(forebay_new_request(slot, word)); }

// A slot in memory shared with forked children.
struct SharedPage {
  Slot* slot;
  SharedPage() {
    void* memory = mmap(nullptr, sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    slot = new (memory) Slot();
  }
  ~SharedPage() { munmap(slot, sizeof(Slot)); }
};

}  // namespace

TEST(reaching_a_record_includes_earlier_ones) {
  Slot slot{};
  const uint64_t first = forebay_record(&slot, process_id()), second = forebay_record(&slot, process_id());
  CHECK(number_in(first) == 1 && number_in(second) == 2 && process_in(second) == process_id());
  CHECK(forebay_wait(&slot, first, kShort) == kNotYet);
  reach(&slot, second);
  reach(&slot, first);  // late: must not lower the number
  CHECK(forebay_wait(&slot, first, 0) == kReached);
  CHECK(forebay_wait(&slot, second, 0) == kReached);
}

TEST(waiter_in_another_process_is_woken) {
  SharedPage page;
  const uint64_t word = forebay_record(page.slot, process_id());
  const pid_t child = fork();
  if (!child) _exit(forebay_wait(page.slot, word, kLimit));
  reach(page.slot, word);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST(waiting_for_ended_process_reports_orphaned) {
  SharedPage page;
  const pid_t child = fork();
  if (!child) _exit(0);
  const uint64_t word = forebay_record(page.slot, static_cast<uint64_t>(child));
  CHECK(forebay_wait(page.slot, word, kLimit) == kOrphaned);  // a zombie
  CHECK(waitpid(child, nullptr, 0) == child);
  CHECK(forebay_wait(page.slot, word, kLimit) == kOrphaned);
  CHECK(forebay_process_start(static_cast<uint64_t>(child)) == 0);
  CHECK(forebay_process_start(process_id()) == forebay_process_start(process_id()));
  CHECK(forebay_process_start(process_id()) != 0);
}

TEST(queue_waits_for_record_and_fails_if_orphaned) {
  Slot slot{};
  Worker one, other;
  const uint64_t word = forebay_record(&slot, process_id());
  one.run(forebay_await, forebay_new_request(&slot, word));
  const uint64_t behind = one.signal();
  CHECK(one.wait(behind, kShort) == Wait::TimedOut);
  other.run(forebay_reach, forebay_new_request(&slot, word));
  CHECK(one.wait(behind, kLimit) == Wait::Reached);
  CHECK(!one.failed());
  one.run(forebay_await, forebay_new_request(&slot, forebay_record(&slot, 0)));  // no process has id 0
  CHECK(one.wait(one.signal(), kLimit) == Wait::Reached);
  CHECK(one.take_failure().code == kOrphaned);
  CHECK(one.close() && other.close());
}

TEST(record_and_reach_are_thread_safe) {
  Slot slot{};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        const uint64_t word = forebay_record(&slot, process_id());
        reach(&slot, word);
        CHECK(forebay_wait(&slot, word, 0) == kReached);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(number_in(slot.recorded) == 16000 && slot.reached == 16000);
}

TEST(lease_is_claimed_once_and_returned_by_claimant) {
  Slot slot{};
  const uint64_t use = word_of(7, 0);
  slot.lease = lease_of(use, kSent);
  CHECK(!forebay_claim(&slot, word_of(6, 41), 1));  // of an earlier use
  CHECK(forebay_claim(&slot, use | 41, 5));
  CHECK(slot.borrower_start == 5);
  CHECK(!forebay_claim(&slot, use | 42, 6));
  forebay_return(forebay_new_request(&slot, use | 42));
  CHECK(slot.lease == lease_of(use | 41, kBorrowed));
  forebay_return(forebay_new_request(&slot, use | 41));
  CHECK(slot.lease == lease_of(use | 41, kReturned));
}

TEST(paused_queue_starts_no_work) {
  Worker queue;
  std::atomic<int> ran{0};
  const Function count = [](void* argument) { return ++*static_cast<std::atomic<int>*>(argument), 0; };
  CHECK(queue.pause(kLimit));  // before the thread starts
  queue.run(count, &ran);
  const uint64_t tick = queue.signal();
  CHECK(queue.wait(tick, kShort) == Wait::TimedOut);
  CHECK(queue.pause(kLimit));  // a second time
  queue.resume();
  CHECK(queue.wait(tick, kShort) == Wait::TimedOut);
  CHECK(ran == 0);
  queue.resume();
  CHECK(queue.wait(tick, kLimit) == Wait::Reached);
  CHECK(ran == 1);
  CHECK(queue.close());
}

TEST(pause_waits_for_running_work_but_not_for_waits) {
  Worker queue, held;
  struct Gate {
    std::atomic<bool> entered{false}, open{false};
  } gate;
  held.run(
      [](void* argument) {
        Gate& gate = *static_cast<Gate*>(argument);
        gate.entered = true;
        spin_until(kLimit, [&] { return std::this_thread::yield(), gate.open.load(); });
        return 0;
      },
      &gate);
  CHECK(spin_until(kLimit, [&] { return std::this_thread::yield(), gate.entered.load(); }));
  CHECK(queue.wait_for(held.timeline(), held.signal()));
  CHECK(queue.pause(kLimit));
  CHECK(!held.pause(kShort));
  gate.open = true;
  CHECK(held.pause(kLimit));
  held.resume();
  held.resume();
  queue.resume();
  CHECK(queue.wait(queue.signal(), kLimit) == Wait::Reached);
  CHECK(queue.close() && held.close());
}

TEST(pause_does_not_wait_for_ipc_event) {
  Slot slot{};
  Worker queue;
  const uint64_t word = forebay_record(&slot, process_id());
  queue.run(forebay_await, forebay_new_request(&slot, word));
  CHECK(queue.pause(kLimit));
  reach(&slot, word);
  const uint64_t tick = queue.signal();
  CHECK(queue.wait(tick, kShort) == Wait::TimedOut);
  queue.resume();
  CHECK(queue.wait(tick, kLimit) == Wait::Reached);
  CHECK(queue.close());
}

TEST(paused_queue_writes_nothing) {
  Worker queue;
  long written = 0;  // not atomic, so that the sanitizer reports a race
  std::thread pauser([&] {
    for (int round = 0; round < 300; ++round) {
      CHECK(queue.pause(kLimit));
      ++written;
      queue.resume();
    }
  });
  for (int round = 0; round < 3000; ++round) {
    queue.run([](void* argument) { return ++*static_cast<long*>(argument), 0; }, &written);
  }
  pauser.join();
  CHECK(queue.wait(queue.signal(), kLimit) == Wait::Reached);
  CHECK(written == 3300);
  CHECK(queue.close());
}

int main(int count, char** arguments) { return check::run_all(count > 1 ? arguments[1] : ""); }
