#include "os/touched_pages.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "base/c_api.hpp"

namespace forebay::touched {
namespace {

constexpr size_t kSteps = (size_t{1} << 48) / kStep;  // no system uses higher addresses unless a process asks for them

// Two bits per step. The table's pages are zero and use no memory until they are written.
struct Table {
  std::atomic<uint64_t> tracked[kSteps / 64];
  std::atomic<uint64_t> untouched[kSteps / 64];
};

std::atomic<Table*> table{nullptr};         // created for the first device; never freed
std::mutex& write_mutex = *new std::mutex;  // never destroyed: a thread may still work while the process exits
std::atomic<size_t> touched_steps{0};

[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { write_mutex.lock(); }, [] { write_mutex.unlock(); }, [] { write_mutex.unlock(); });

struct Steps {
  size_t first, end;
  Steps(uintptr_t address, size_t nbytes) : first(std::min(address / kStep, kSteps)), end(first) {
    const uintptr_t last = address + (nbytes - 1);
    if (nbytes) end = last < address ? kSteps : std::min(last / kStep + 1, kSteps);
  }
};

// Calls `visit(word, bits)` for each word of 64 steps that overlaps the range, until it returns true.
template <class Visit>
bool any_word(Steps steps, Visit visit) {
  for (size_t at = steps.first; at < steps.end;) {
    const size_t word = at / 64, limit = std::min(steps.end, (word + 1) * 64);
    const size_t count = limit - at;
    const uint64_t bits = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << (at % 64);
    if (visit(word, bits)) return true;
    at = limit;
  }
  return false;
}

size_t popcount(uint64_t bits) { return static_cast<size_t>(__builtin_popcountll(bits)); }

size_t resident_in_step(uintptr_t step) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), pages = kStep / page;
  std::unique_ptr<unsigned char[]> found(new (std::nothrow) unsigned char[pages]);
#ifdef __linux__
  unsigned char* const vector = found.get();
#else
  char* const vector = reinterpret_cast<char*>(found.get());
#endif
  if (!found) return 0;
  size_t count = pages;  // a segment may end within its last step
  while (count && mincore(reinterpret_cast<void*>(step * kStep), count * page, vector)) count /= 2;
  return page * static_cast<size_t>(std::count_if(&found[0], &found[count], [](int each) { return each & 1; }));
}

}  // namespace

void add(uintptr_t address, size_t nbytes) {
  std::lock_guard<std::mutex> lock(write_mutex);
  if (!table) table = new Table();
  Table& all = *table;
  any_word({address, nbytes}, [&](size_t word, uint64_t bits) {
    const uint64_t added = bits & ~all.tracked[word];
    all.tracked[word] |= added;
    all.untouched[word] |= added;
    return false;
  });
}

void remove(uintptr_t address, size_t nbytes) noexcept {
  std::lock_guard<std::mutex> lock(write_mutex);
  if (!table) return;
  Table& all = *table;
  any_word({address, nbytes}, [&](size_t word, uint64_t bits) {
    touched_steps -= popcount(bits & all.tracked[word] & ~all.untouched[word]);
    all.tracked[word] &= ~bits;
    all.untouched[word] &= ~bits;
    return false;
  });
}

bool any_untouched(uintptr_t address, size_t nbytes) noexcept {
  const Table* all = table.load(std::memory_order_acquire);
  return all && any_word({address, nbytes}, [&](size_t word, uint64_t bits) {
           return (all->untouched[word].load(std::memory_order_relaxed) & bits) != 0;
         });
}

size_t untouched_bytes(uintptr_t address, size_t nbytes) noexcept {
  const Table* all = table.load(std::memory_order_acquire);
  size_t steps = 0;
  if (all) {
    any_word({address, nbytes}, [&](size_t word, uint64_t bits) {
      steps += popcount(all->untouched[word] & bits);
      return false;
    });
  }
  return steps * kStep;
}

void mark_touched(uintptr_t address, size_t nbytes) noexcept {
  std::lock_guard<std::mutex> lock(write_mutex);
  if (!table) return;
  Table& all = *table;
  any_word({address, nbytes}, [&](size_t word, uint64_t bits) {
    touched_steps += popcount(all.untouched[word] & bits);
    all.untouched[word] &= ~bits;
    return false;
  });
}

size_t total_touched() noexcept { return touched_steps * kStep; }

size_t resident_bytes(uintptr_t address, size_t nbytes) noexcept {
  const Table* all = table.load(std::memory_order_acquire);
  size_t found = 0;
  if (!all) return found;
  any_word({address, nbytes}, [&](size_t word, uint64_t bits) {
    for (uint64_t left = bits & all->tracked[word] & ~all->untouched[word]; left; left &= left - 1) {
      found += resident_in_step(word * 64 + static_cast<size_t>(__builtin_ctzll(left)));
    }
    return false;
  });
  return found;
}

}  // namespace forebay::touched

// ---- C functions for backends/emulated/memory_budget.py

using namespace forebay;

EXPORTED bool forebay_touched_add(uintptr_t address, size_t nbytes) noexcept {
  try {
    touched::add(address, nbytes);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}
EXPORTED void forebay_touched_drop(uintptr_t address, size_t nbytes) noexcept { touched::remove(address, nbytes); }
EXPORTED size_t forebay_touched_fresh(uintptr_t address, size_t nbytes) noexcept {
  return touched::untouched_bytes(address, nbytes);
}
EXPORTED void forebay_touched_mark(uintptr_t address, size_t nbytes) noexcept {
  touched::mark_touched(address, nbytes);
}
EXPORTED size_t forebay_touched_total() noexcept { return touched::total_touched(); }
EXPORTED size_t forebay_touched_resident(uintptr_t address, size_t nbytes) noexcept {
  return touched::resident_bytes(address, nbytes);
}
