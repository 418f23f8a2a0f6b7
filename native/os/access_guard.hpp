// Memory of emulated devices that is closed to the whole process, but for the time that queues work with it.
//
// One guard for the process: work of one device touches another's, too. What touches closed memory ends the process,
// after a line that says which device's it was; whoever had the signal before then goes on (Python's faulthandler).
// What is open is open to all threads, until no queue is at work.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay::guard {

// The range is open when it comes; what of it is there already is written anew. `segment`: where that begins which it
// is a part of. Both may throw std::bad_alloc; then the range is not guarded, or still is.
void add(uintptr_t address, size_t nbytes, uintptr_t segment, const char* device);
void remove(uintptr_t address,
            size_t nbytes);  // all of it that is there, before it is unmapped; open or closed it stays

// Around work of a queue: what it names is opened, and the last to leave closes it.
void enter();
void open(uintptr_t address, size_t nbytes);  // the ranges that any of this lies in
void open_all();                              // for what may touch anything
void leave();

// One queue's stay: it begins with the first memory that is named. Of that queue's thread alone.
class Stay {
 public:
  void at(uintptr_t address, size_t nbytes) { begin(), open(address, nbytes); }
  void at(const void* memory, size_t nbytes) { at(reinterpret_cast<uintptr_t>(memory), nbytes); }
  void anywhere() { begin(), open_all(); }
  void end() {
    if (inside_) leave();
    inside_ = false;
  }

 private:
  void begin() {
    if (!inside_) enter();
    inside_ = true;
  }
  bool inside_ = false;
};

void watch(int descriptor);  // from now on a touch is told there
bool unwatch();              // whoever had the signal before has it again; false where somebody else took it since

}  // namespace forebay::guard
