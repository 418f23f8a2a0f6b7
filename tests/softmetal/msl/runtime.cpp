// Runs the threads of a dispatch: one after another, or as fibers where the threads of a group wait for each other.
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700  // macOS has contexts for programs that ask for this standard
#endif
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace {

struct Thread {  // as in include/softmetal_threads.hpp
  unsigned position[3], local[3], group[3], groups[3], grid[3], size[3], full_size[3];
  unsigned index, lane, simdgroup, simdgroups, full_simdgroups, width;
  void* const* buffers;
  void* const* threadgroup;
};

constexpr unsigned kWidth = 32;           // threads in a SIMD-group
constexpr size_t kStack = 256 * 1024;     // bytes for each fiber
constexpr size_t kPublished = 64;         // bytes that a lane can exchange
constexpr int kGroup = 0, kNowhere = -1;  // what a fiber waits for; 1 is its SIMD-group

using Entry = void (*)(const Thread*);

struct Fiber {
  ucontext_t context;
  Thread thread;
  std::unique_ptr<char[]> stack;
  int waits = kNowhere;
  bool done = false;
  alignas(16) char published[kPublished];
};

struct Group {
  ucontext_t scheduler;
  std::vector<Fiber> fibers;
  Fiber* running = nullptr;
  Entry entry;
};

thread_local Group* current = nullptr;
thread_local const Thread* alone = nullptr;

void start() {
  Fiber* fiber = current->running;
  current->entry(&fiber->thread);
  fiber->done = true;
  swapcontext(&fiber->context, &current->scheduler);
}

// Let the fibers from one to another run until each waits or ends; say whether all did the same.
bool run_until_barrier(Group& group, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) {
    Fiber& fiber = group.fibers[i];
    if (fiber.done || fiber.waits == kGroup) continue;
    fiber.waits = kNowhere;
    group.running = &fiber;
    swapcontext(&group.scheduler, &fiber.context);
  }
  for (size_t i = from + 1; i < to; i++) {
    if (group.fibers[i].done != group.fibers[from].done || group.fibers[i].waits != group.fibers[from].waits)
      return false;
  }
  return true;
}

bool run_group(Group& group) {
  size_t count = group.fibers.size();
  for (;;) {
    for (size_t from = 0; from < count; from += kWidth) {
      size_t to = from + kWidth < count ? from + kWidth : count;
      do {
        if (!run_until_barrier(group, from, to)) return false;
      } while (!group.fibers[from].done && group.fibers[from].waits != kGroup);
    }
    bool done = group.fibers[0].done;
    for (Fiber& fiber : group.fibers) {
      if (fiber.done != done) return false;
      fiber.waits = kNowhere;
    }
    if (done) return true;
  }
}

}  // namespace

extern "C" void softmetal_barrier(int scope) {
  if (current == nullptr) return;
  Fiber* fiber = current->running;
  fiber->waits = scope;
  swapcontext(&fiber->context, &current->scheduler);
}

extern "C" const Thread* softmetal_self() { return current != nullptr ? &current->running->thread : alone; }

extern "C" void* softmetal_exchange(int lane) {
  Fiber* self = current->running;
  return lane < 0 ? self->published : current->fibers[self->thread.simdgroup * kWidth + unsigned(lane)].published;
}

extern "C" unsigned softmetal_active_lanes() {
  size_t first = size_t(current->running->thread.simdgroup) * kWidth, count = current->fibers.size();
  return unsigned(count - first < kWidth ? count - first : kWidth);
}

// Run a grid of threads; return 1 if threads of a group did not all reach a barrier.
extern "C" int softmetal_run(Entry entry, void* const* buffers, void* const* threadgroup, const unsigned* grid,
                             const unsigned* full, int fibers) {
  Thread thread{};
  thread.buffers = buffers;
  thread.threadgroup = threadgroup;
  thread.width = kWidth;
  for (int d = 0; d < 3; d++) {
    thread.grid[d] = grid[d];
    thread.full_size[d] = full[d];
    thread.groups[d] = (grid[d] + full[d] - 1) / full[d];
  }
  thread.full_simdgroups = (full[0] * full[1] * full[2] + kWidth - 1) / kWidth;
  Group group;
  group.entry = entry;
  for (uint64_t g = 0; g < uint64_t(thread.groups[0]) * thread.groups[1] * thread.groups[2]; g++) {
    thread.group[0] = unsigned(g % thread.groups[0]);
    thread.group[1] = unsigned(g / thread.groups[0] % thread.groups[1]);
    thread.group[2] = unsigned(g / thread.groups[0] / thread.groups[1]);
    for (int d = 0; d < 3; d++) {
      unsigned left = grid[d] - thread.group[d] * full[d];
      thread.size[d] = left < full[d] ? left : full[d];
    }
    unsigned count = thread.size[0] * thread.size[1] * thread.size[2];
    thread.simdgroups = (count + kWidth - 1) / kWidth;
    if (fibers) group.fibers.resize(count);
    for (unsigned i = 0; i < count; i++) {
      thread.index = i;
      thread.lane = i % kWidth;
      thread.simdgroup = i / kWidth;
      thread.local[0] = i % thread.size[0];
      thread.local[1] = i / thread.size[0] % thread.size[1];
      thread.local[2] = i / thread.size[0] / thread.size[1];
      for (int d = 0; d < 3; d++) thread.position[d] = thread.group[d] * full[d] + thread.local[d];
      if (!fibers) {
        alone = &thread;
        entry(&thread);
        continue;
      }
      Fiber& fiber = group.fibers[i];
      if (!fiber.stack) fiber.stack.reset(new char[kStack]);
      fiber.thread = thread;
      fiber.done = false;
      fiber.waits = kNowhere;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, start, 0);
    }
    if (!fibers) continue;
    current = &group;
    bool agreed = run_group(group);
    current = nullptr;
    if (!agreed) return 1;
  }
  return 0;
}
