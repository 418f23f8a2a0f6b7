// Touched pages: the memory of emulated devices that work has written, in steps of 2 MiB. The host commits memory only
// for those.
//
// One table serves the process, as all its devices share the host. Queries take no lock. Its use: Note [Budget of host
// memory] in backends/emulated/memory_budget.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace forebay {

// Thrown for work that would write memory not yet counted as touched.
struct UncountedMemory : std::bad_alloc {
  const char* what() const noexcept override { return "the work would touch memory that is not counted yet"; }
};

namespace touched {

constexpr size_t kStep = size_t{2} << 20;

// A range covers every step that it overlaps.
void add(uintptr_t address, size_t nbytes);  // tracks the steps as untouched; steps tracked before are unchanged
void remove(uintptr_t address, size_t nbytes) noexcept;
bool any_untouched(uintptr_t address, size_t nbytes) noexcept;
size_t untouched_bytes(uintptr_t address, size_t nbytes) noexcept;  // in whole steps
void mark_touched(uintptr_t address, size_t nbytes) noexcept;
size_t total_touched() noexcept;                                   // bytes, in whole steps
size_t resident_bytes(uintptr_t address, size_t nbytes) noexcept;  // of the touched steps

}  // namespace touched
}  // namespace forebay
