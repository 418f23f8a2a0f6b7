#include "os/access_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

#include "base/exported.hpp"
#include "base/timeline.hpp"

namespace forebay::guard {
namespace {

struct Range {
  size_t nbytes;
  uintptr_t segment;
  bool open;
  char device[24];
};

// Never destroyed: a thread may still work when the process leaves.
struct Guard {
  std::mutex mutex;  // of all that stands here
  std::map<uintptr_t, Range> ranges;
  int working = 0;
  bool watching = false;
  int descriptor = 2;
};
Guard& guard = *new Guard;

#ifdef __APPLE__
constexpr int kSignals[] = {SIGSEGV, SIGBUS};
#else
constexpr int kSignals[] = {SIGSEGV};
#endif
struct sigaction before[std::size(kSignals)];

bool protect(uintptr_t address, size_t nbytes, int protection) {
  return mprotect(reinterpret_cast<void*>(address), nbytes, protection) == 0;
}

// Where it cannot be closed it stays open: a mistake may go unseen, but nothing that is right goes wrong.
void close(uintptr_t address, Range& range) { range.open = !protect(address, range.nbytes, PROT_NONE); }

void close_all() {
  for (auto& [address, range] : guard.ranges) {
    if (range.open) close(address, range);
  }
}

// A forked child has no queue that could be at work.
[[maybe_unused]] const int fork_handlers = pthread_atfork([] { guard.mutex.lock(); }, [] { guard.mutex.unlock(); },
                                                          [] {
                                                            close_all();
                                                            guard.working = 0;
                                                            guard.mutex.unlock();
                                                          });

// ---- The line, made without anything that a signal's handler may not call

struct Line {
  char text[400];
  size_t length = 0;

  Line& operator<<(const char* part) {
    while (*part && length < sizeof text) text[length++] = *part++;
    return *this;
  }
  Line& number(uint64_t value, unsigned base) {
    char digits[24];
    size_t count = 0;
    do digits[count++] = "0123456789abcdef"[value % base];
    while (value /= base);
    while (count && length < sizeof text) text[length++] = digits[--count];
    return *this;
  }
  void write_to(int descriptor) const {
    for (size_t done = 0; done < length;) {
      const ssize_t written = write(descriptor, text + done, length - done);
      if (written <= 0) return;
      done += static_cast<size_t>(written);
    }
  }
};

void open(uintptr_t address, Range& range) {
  if (range.open) return;
  range.open = protect(address, range.nbytes, PROT_READ | PROT_WRITE);
  if (range.open) return;
  // The process has all the mappings it may have. To go on would look like the user's mistake.
  Line line;
  line << "\nforebay: " << range.device << ": guarded memory cannot be opened for work, as mprotect failed; ";
  line << "reserve fewer segments, or emulate without guard=True\n";
  line.write_to(guard.descriptor);
  std::abort();
}

// Waits, but not for ever, for a thread that opens or closes memory just now.
bool lock_within_reason() {
  bool locked = false;
  spin_until(1'000'000'000, [&] { return locked = guard.mutex.try_lock(); });
  return locked;
}

const char* const kAdvice =
    "the host touched device memory outside queued work; copy it first (Tensor.cpu()), or do it in the queue";

// Tells of the touch, if it was one.
bool tell(uintptr_t address) {
  if (!lock_within_reason()) return false;
  auto found = guard.ranges.upper_bound(address);
  const bool ours = found != guard.ranges.begin() && address - (--found)->first < found->second.nbytes;
  Line line;
  if (ours) {
    const Range& range = found->second;
    line << "\nforebay: " << range.device << ": " << kAdvice << ": address 0x";
    line.number(address, 16) << ", byte ";
    line.number(address - range.segment, 10) << " of the segment at 0x";
    line.number(range.segment, 16) << "\n";
  }
  const int descriptor = guard.descriptor;
  guard.mutex.unlock();
  if (ours) line.write_to(descriptor);
  return ours;
}

bool is_ours(const struct sigaction& action);

void handle(int signal, siginfo_t* info, void* context) {
  const size_t which = static_cast<size_t>(std::find(std::begin(kSignals), std::end(kSignals), signal) - kSignals);
  const struct sigaction& next = before[which];
  const bool sent = info->si_code <= 0;  // by a process, so there is no address
  const bool ours = !sent && tell(reinterpret_cast<uintptr_t>(info->si_addr));
  if (next.sa_flags & SA_SIGINFO) {
    next.sa_sigaction(signal, info, context);
  } else if (next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN) {
    next.sa_handler(signal);
  } else {
    sigaction(signal, &next, nullptr);
    // The default comes when the access is done again, but memory may be open by then.
    if (sent || ours) raise(signal);
    return;
  }
  if (!ours) return;
  struct sigaction now{};
  sigaction(signal, nullptr, &now);
  if (is_ours(now)) {  // else it has put in place who comes next, as faulthandler does
    now = {};
    now.sa_handler = SIG_DFL;
    sigaction(signal, &now, nullptr);
  }
  raise(signal);  // it is blocked until we return
}

bool is_ours(const struct sigaction& action) { return action.sa_flags & SA_SIGINFO && action.sa_sigaction == handle; }

}  // namespace

void add(uintptr_t address, size_t nbytes, uintptr_t segment, const char* device) {
  Range range{nbytes, segment, true, ""};
  std::strncpy(range.device, device, sizeof range.device - 1);
  remove(address, nbytes);
  std::lock_guard<std::mutex> lock(guard.mutex);
  Range& added = guard.ranges.insert_or_assign(address, range).first->second;
  if (!guard.working) close(address, added);
}

void remove(uintptr_t address, size_t nbytes) {
  std::lock_guard<std::mutex> lock(guard.mutex);
  const uintptr_t end = address + nbytes;
  auto at = guard.ranges.upper_bound(address);
  if (at != guard.ranges.begin()) --at;
  while (at != guard.ranges.end() && at->first < end) {
    const auto [start, range] = *at;
    const uintptr_t stop = start + range.nbytes;
    if (stop <= address) {
      ++at;
      continue;
    }
    if (stop > end) guard.ranges.insert_or_assign(end, range).first->second.nbytes = stop - end;
    if (start < address) {
      at->second.nbytes = address - start;
      ++at;
    } else {
      at = guard.ranges.erase(at);
    }
  }
}

void enter() {
  std::lock_guard<std::mutex> lock(guard.mutex);
  ++guard.working;
}

void open(uintptr_t address, size_t nbytes) {
  std::lock_guard<std::mutex> lock(guard.mutex);
  auto at = guard.ranges.upper_bound(address);
  if (at != guard.ranges.begin() && address - std::prev(at)->first < std::prev(at)->second.nbytes) --at;
  for (; at != guard.ranges.end() && (at->first <= address || at->first - address < nbytes); ++at) {
    open(at->first, at->second);
  }
}

void open_all() {
  std::lock_guard<std::mutex> lock(guard.mutex);
  for (auto& [address, range] : guard.ranges) open(address, range);
}

void leave() {
  std::lock_guard<std::mutex> lock(guard.mutex);
  if (guard.working && --guard.working == 0) close_all();  // 0: we are the child of a fork within the work
}

void watch(int descriptor) {
  std::lock_guard<std::mutex> lock(guard.mutex);
  guard.descriptor = descriptor;
  if (guard.watching) return;
  guard.watching = true;
  struct sigaction action{};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before[i]);
}

bool unwatch() {
  std::lock_guard<std::mutex> lock(guard.mutex);
  if (!guard.watching) return true;
  struct sigaction now[std::size(kSignals)];
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &now[i]);
    if (!is_ours(now[i])) return false;  // whoever came since may call us
  }
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before[i], nullptr);
  guard.watching = false;
  return true;
}

}  // namespace forebay::guard

// ---- For backends/emulated/memory_budget.py

EXPORTED bool forebay_guard_add(uintptr_t address, size_t nbytes, uintptr_t segment, const char* device) noexcept {
  try {
    forebay::guard::add(address, nbytes, segment, device);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}
EXPORTED bool forebay_guard_remove(uintptr_t address, size_t nbytes) noexcept {
  try {
    forebay::guard::remove(address, nbytes);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}
EXPORTED void forebay_guard_watch(int descriptor) noexcept { forebay::guard::watch(descriptor); }
EXPORTED bool forebay_guard_unwatch() noexcept { return forebay::guard::unwatch(); }
