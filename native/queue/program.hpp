// Program: the recorded work of a graph capture as one block of bytes, which a queue can replay any number of times.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "random/draw.hpp"

namespace forebay {

// A condition (If, While) stores the value that SetCondition last gave it in its own `a`. Its body follows it and is
// `b` bytes long; the body of a While ends in EndWhile, which jumps `a` bytes back to the While.
enum class Opcode : uint32_t { Copy, Fill, Draw, StridedCopy, Call, SetCondition, If, While, EndWhile };

struct Step {
  Opcode opcode;
  uint32_t nbytes;  // including operands: a packed draw or strided copy follows its step
  // Copy: destination, source, bytes. Fill: address, byte value, bytes. Call: function, argument. SetCondition: address
  // of a byte, offset of the condition in the program.
  uint64_t a, b, c;
};
static_assert(sizeof(Step) == 32, "Python packs steps of 32 bytes");

// Returns false if the bytes are no valid program. No step may jump out of it or into the middle of another step.
bool is_valid_program(const void* bytes, size_t nbytes);

// Runs a program and returns the first error code of a step, or 0; later steps run regardless. Conditions keep their
// state in the bytes. Ends early if `stop` is set.
int run_program(char* bytes, size_t nbytes, const std::atomic<bool>& stop);

// Returns the memory written by copies, fills, draws and strided copies, regardless of conditions. Writes of called
// functions are unknown.
std::vector<Span> written_spans(const void* bytes, size_t nbytes);

}  // namespace forebay
