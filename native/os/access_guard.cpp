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

#include "base/c_api.hpp"
#include "base/timeline.hpp"

namespace forebay::guard {
namespace {

struct Range {
  size_t nbytes;
  uintptr_t segment;
  bool open;
  char device[24];
};

// Never destroyed: a thread may still work while the process exits.
struct Guard {
  std::mutex mutex;  // guards all fields
  std::map<uintptr_t, Range> ranges;
  int working = 0;
  bool installed = false;
  int descriptor = 2;
};
Guard& guard = *new Guard;

#ifdef __APPLE__
constexpr int kSignals[] = {SIGSEGV, SIGBUS};
#else
constexpr int kSignals[] = {SIGSEGV};
#endif
struct sigaction previous[std::size(kSignals)];

bool protect(uintptr_t address, size_t nbytes, int protection) {
  return mprotect(reinterpret_cast<void*>(address), nbytes, protection) == 0;
}

// If the range cannot be closed it remains open: an error may go undetected, but no valid access fails.
void close(uintptr_t address, Range& range) { range.open = !protect(address, range.nbytes, PROT_NONE); }

void close_all() {
  for (auto& [address, range] : guard.ranges) {
    if (range.open) close(address, range);
  }
}

// A forked child has no working queue.
[[maybe_unused]] const int fork_handlers = pthread_atfork([] { guard.mutex.lock(); }, [] { guard.mutex.unlock(); },
                                                          [] {
                                                            close_all();
                                                            guard.working = 0;
                                                            guard.mutex.unlock();
                                                          });

// ---- Messages, using only functions that a signal handler may call

struct Message {
  char text[400];
  size_t length = 0;

  Message& operator<<(const char* part) {
    while (*part && length < sizeof text) text[length++] = *part++;
    return *this;
  }
  Message& number(uint64_t value, unsigned base) {
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
  // The process has reached its limit of mappings. Continuing would report a valid access as an error.
  Message message;
  message << "\nforebay: " << range.device << ": guarded memory cannot be opened for work, as mprotect failed; ";
  message << "reserve fewer segments, or emulate without guard=True\n";
  message.write_to(guard.descriptor);
  std::abort();
}

// Locks the guard, waiting at most one second for a thread that is opening or closing memory.
bool lock_with_timeout() {
  bool locked = false;
  spin_until(1'000'000'000, [&] { return locked = guard.mutex.try_lock(); });
  return locked;
}

const char* const kAdvice =
    "the host touched device memory outside queued work; copy it first (Tensor.cpu()), or do it in the queue";

// Reports an access to guarded memory. Returns false if the address is not guarded.
bool report_access(uintptr_t address) {
  if (!lock_with_timeout()) return false;
  auto found = guard.ranges.upper_bound(address);
  const bool guarded = found != guard.ranges.begin() && address - (--found)->first < found->second.nbytes;
  Message message;
  if (guarded) {
    const Range& range = found->second;
    message << "\nforebay: " << range.device << ": " << kAdvice << ": address 0x";
    message.number(address, 16) << ", byte ";
    message.number(address - range.segment, 10) << " of the segment at 0x";
    message.number(range.segment, 16) << "\n";
  }
  const int descriptor = guard.descriptor;
  guard.mutex.unlock();
  if (guarded) message.write_to(descriptor);
  return guarded;
}

bool is_own_handler(const struct sigaction& action);

void handle(int signal, siginfo_t* info, void* context) {
  const size_t which = static_cast<size_t>(std::find(std::begin(kSignals), std::end(kSignals), signal) - kSignals);
  const struct sigaction& next = previous[which];
  const bool sent = info->si_code <= 0;  // sent by a process: there is no address
  const bool reported = !sent && report_access(reinterpret_cast<uintptr_t>(info->si_addr));
  if (next.sa_flags & SA_SIGINFO) {
    next.sa_sigaction(signal, info, context);
  } else if (next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN) {
    next.sa_handler(signal);
  } else {
    sigaction(signal, &next, nullptr);
    // The default action follows when the access is repeated, but by then the memory may be open.
    if (sent || reported) raise(signal);
    return;
  }
  if (!reported) return;
  struct sigaction now{};
  sigaction(signal, nullptr, &now);
  if (is_own_handler(now)) {  // otherwise it installed its successor, as faulthandler does
    now = {};
    now.sa_handler = SIG_DFL;
    sigaction(signal, &now, nullptr);
  }
  raise(signal);  // delivered when this handler returns
}

bool is_own_handler(const struct sigaction& action) {
  return action.sa_flags & SA_SIGINFO && action.sa_sigaction == handle;
}

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

void begin_work() {
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

void end_work() {
  std::lock_guard<std::mutex> lock(guard.mutex);
  if (guard.working && --guard.working == 0) close_all();  // 0: this is a child forked during the work
}

void install_handler(int descriptor) {
  std::lock_guard<std::mutex> lock(guard.mutex);
  guard.descriptor = descriptor;
  if (guard.installed) return;
  guard.installed = true;
  struct sigaction action{};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

bool uninstall_handler() {
  std::lock_guard<std::mutex> lock(guard.mutex);
  if (!guard.installed) return true;
  struct sigaction now[std::size(kSignals)];
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &now[i]);
    if (!is_own_handler(now[i])) return false;  // a handler installed later may call this one
  }
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  guard.installed = false;
  return true;
}

}  // namespace forebay::guard

// ---- C functions for backends/emulated/memory_budget.py

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
EXPORTED void forebay_guard_watch(int descriptor) noexcept { forebay::guard::install_handler(descriptor); }
EXPORTED bool forebay_guard_unwatch() noexcept { return forebay::guard::uninstall_handler(); }
