// Access guard: memory of emulated devices that is inaccessible to the process except while queues work with it.
//
// Note [Access guard]
// On a GPU, an access of the host to device memory crashes, so a missing copy must fail here, too. Work opens the
// segments that it names before the first command of a batch (a function: all), and the queue closes its scope before
// it reaches a tick, waits for another queue or becomes idle: no work is reported as complete while its memory is open.
// The last worker to end closes the memory, as open memory is open to all threads. One guard serves the process, as
// work of one device may touch another's memory. The SIGSEGV handler writes one line and chains to the handler before
// it (Python's faulthandler); it does not repeat the access, as another worker may have opened the memory by then.
// Rejected: opening all segments for any work (636 µs for a round trip with 110 segments, against 13); opening memory
// when a worker faults, as a system call in a queued function would fail; protection keys, which few machines have.
// Test: tests/process/test_guard.py::test_guard_reports_the_accessing_line
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay::guard {

// Guards a range, which must be accessible; replaces guarded ranges it overlaps. `segment` is the address of the
// segment that contains the range. On std::bad_alloc, add() leaves the range unguarded and remove() leaves it guarded.
void add(uintptr_t address, size_t nbytes, uintptr_t segment, const char* device);
void remove(uintptr_t address, size_t nbytes);  // before the memory is unmapped; does not change its protection

// Around work of a queue: the work opens the memory it uses; when the last working queue ends, all memory is closed.
void begin_work();
void open(uintptr_t address, size_t nbytes);  // every guarded range that overlaps
void open_all();                              // for work that may touch any memory
void end_work();

// Working period of one queue: begins when memory is first opened. For that queue's thread only.
class GuardScope {
 public:
  void open(uintptr_t address, size_t nbytes) { begin(), guard::open(address, nbytes); }
  void open(const void* memory, size_t nbytes) { open(reinterpret_cast<uintptr_t>(memory), nbytes); }
  void open_all() { begin(), guard::open_all(); }
  void end() {
    if (working_) end_work();
    working_ = false;
  }

 private:
  void begin() {
    if (!working_) begin_work();
    working_ = true;
  }
  bool working_ = false;
};

void install_handler(int descriptor);  // messages go to the file descriptor
bool uninstall_handler();              // restores the previous handler; false if another one was installed since

}  // namespace forebay::guard
