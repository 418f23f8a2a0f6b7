// Which memory of emulated devices work has touched, in steps of 2 MiB: the machine gives memory for those, and no
// sooner.
//
// One table for the process, as all its devices share one machine. Asking takes no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace forebay {

// Of a request to write memory that nobody has counted yet.
struct Uncounted : std::bad_alloc {
  const char* what() const noexcept override { return "the work would touch memory that is not counted yet"; }
};

namespace touched {

constexpr size_t kStep = size_t{2} << 20;

// A device has these steps now, all that a part of lies in the range; those it had before stay as they are.
void add(uintptr_t address, size_t nbytes);
void drop(uintptr_t address, size_t nbytes) noexcept;
bool any_fresh(uintptr_t address, size_t nbytes) noexcept;         // some of it is a device's and not touched yet
size_t count_fresh(uintptr_t address, size_t nbytes) noexcept;     // how many bytes of steps
void mark(uintptr_t address, size_t nbytes) noexcept;              // these are touched, or about to be
size_t total() noexcept;                                           // bytes of steps that are
size_t count_resident(uintptr_t address, size_t nbytes) noexcept;  // bytes of those here that have memory

}  // namespace touched
}  // namespace forebay
