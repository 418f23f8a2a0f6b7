// Work of a queue in one piece of bytes, to be done again and again: what was recorded once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "random/draw.hpp"

namespace forebay {

// A condition keeps what it was last Set to in its own `a`. Its body follows it, `b` bytes; While's ends in Again,
// which goes `a` bytes back to the While.
enum class What : uint32_t { Copy, Fill, Draw, Native, Set, If, While, Again };

struct Step {
  What what;
  uint32_t nbytes;  // with all that belongs to it: a Draw stands behind its step
  // Copy: to, from, how much; Fill: where, what byte, how much; Native: function, argument; Set: where a byte is, and
  // where in the program the condition is that gets it
  uint64_t a, b, c;
};
static_assert(sizeof(Step) == 32, "as Python packs it");

// False where the bytes are no program: no step may lead out of it, or into the middle of another.
bool readable_program(const void* bytes, size_t nbytes);

// Returns the first code that a step failed with, or 0; the steps behind it are done all the same. Conditions keep
// their state in the bytes. It ends early when `stop` is set.
int run_program(char* bytes, size_t nbytes, const std::atomic<bool>& stop);

// Where its copies, fills and draws write, whether their conditions hold or not; what functions do nobody knows.
std::vector<Span> program_writes(const void* bytes, size_t nbytes);

}  // namespace forebay
