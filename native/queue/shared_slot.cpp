#include "queue/shared_slot.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#ifdef __linux__
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "queue/worker.hpp"

using namespace forebay;

namespace {

constexpr int64_t kLivenessCheckNanos = 50'000'000;  // a waiter checks this often whether the other process lives

bool is_reached(const Slot* slot, uint64_t word) { return slot->reached.load() >= number_in(word); }

// Waits until the bell differs from `before` or the time is over. May return early.
void wait_for_bell(Slot* slot, [[maybe_unused]] uint32_t before, int64_t nanos) {
#ifdef __linux__
  const timespec limit{static_cast<time_t>(nanos / 1'000'000'000), static_cast<long>(nanos % 1'000'000'000)};
  syscall(SYS_futex, &slot->bell, FUTEX_WAIT, before, &limit, nullptr, 0);
#else
  if (slot->bell.load() == before) std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(nanos, kSpinNanos)));
#endif
}

void ring_bell(Slot* slot) {
  slot->bell.fetch_add(1);
#ifdef __linux__
  syscall(SYS_futex, &slot->bell, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
#endif
}

}  // namespace

uint64_t forebay_record(Slot* slot, uint64_t process) {
  uint64_t before = slot->recorded.load(), word;
  do {
    word = word_of(number_in(before) + 1, process);
  } while (!slot->recorded.compare_exchange_weak(before, word));
  return word;
}

int forebay_reach(void* argument) {
  const std::unique_ptr<SlotRequest> request(static_cast<SlotRequest*>(argument));
  const uint64_t number = number_in(request->word);
  uint64_t before = request->slot->reached.load();
  while (before < number && !request->slot->reached.compare_exchange_weak(before, number)) {
  }
  ring_bell(request->slot);
  return 0;
}

int forebay_wait(Slot* slot, uint64_t word, int64_t timeout_ns) {
  if (spin_until(std::min(timeout_ns, kSpinNanos), [&] { return is_reached(slot, word); })) return kReached;
  const int64_t end = steady_nanos() + timeout_ns;
  for (;;) {
    const uint32_t before = slot->bell.load();  // read before the check, so that a later change wakes this thread
    if (is_reached(slot, word)) return kReached;
    const int64_t left = std::min(end - steady_nanos(), kLivenessCheckNanos);
    if (left > 0) wait_for_bell(slot, before, left);
    if (is_reached(slot, word)) return kReached;
    if (!forebay_process_start(process_in(word))) return is_reached(slot, word) ? kReached : kOrphaned;
    if (left <= 0) return kNotYet;
  }
}

int forebay_await(void* argument) {
  const std::unique_ptr<SlotRequest> request(static_cast<SlotRequest*>(argument));
  set_suspended(true);
  int outcome;
  do {
    outcome = forebay_wait(request->slot, request->word, std::int64_t{1} << 40);
  } while (outcome == kNotYet);
  set_suspended(false);
  return outcome;
}

int forebay_claim(Slot* slot, uint64_t word, uint64_t start) {
  uint64_t sent = lease_of(word_of(number_in(word), 0), kSent);
  if (!slot->lease.compare_exchange_strong(sent, lease_of(word, kBorrowed))) return 0;
  slot->borrower_start = start;
  return 1;
}

int forebay_return(void* argument) {
  const std::unique_ptr<SlotRequest> request(static_cast<SlotRequest*>(argument));
  uint64_t mine = lease_of(request->word, kBorrowed);
  request->slot->lease.compare_exchange_strong(mine, lease_of(request->word, kReturned));
  return 0;
}

SlotRequest* forebay_new_request(Slot* slot, uint64_t word) { return new SlotRequest{slot, word}; }

void forebay_delete_request(SlotRequest* request) { delete request; }

uint64_t forebay_process_start([[maybe_unused]] uint64_t process) {
#ifdef __linux__
  char path[48], text[1024];
  std::snprintf(path, sizeof path, "/proc/%llu/stat", static_cast<unsigned long long>(process));
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  const char* at = std::strrchr(text, ')');  // the end of the command name, which may contain any character
  if (!at || at[1] != ' ' || std::strchr("ZX", at[2])) return 0;
  at += 2;
  for (int field = 3; field < 22 && at; ++field) at = std::strchr(at + 1, ' ');
  unsigned long long start = 0;
  return at && std::sscanf(at, "%llu", &start) == 1 && start ? start : 1;
#else
  return 1;
#endif
}

EXPORTED int forebay_pause(Worker* worker, int64_t timeout_ns) { return worker->pause(timeout_ns); }
EXPORTED void forebay_resume(Worker* worker) { worker->resume(); }
