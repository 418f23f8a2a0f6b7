// Fills memory with random numbers, each element with the one that PyTorch's kernels give it on a GPU of so many
// threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay {

enum class Law : uint8_t { Uniform, Normal, Exponential, Bernoulli, Integers, Chances };
enum class Element : uint8_t { Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64 };

// One kernel's work, in the bytes that Python packs; behind it stand the axes of what is filled, the fastest first.
struct Draw {
  uint64_t address, count;
  uint64_t seed, offset;  // of words, a multiple of 4
  uint64_t threads;       // a multiple of 256
  // Uniform: from, to, their distance; Normal: mean, deviation; Exponential: rate; Bernoulli: probability
  double a, b, c;
  uint64_t range;    // Integers: how many there are, 0 for 2^64
  int64_t base;      // the smallest of them
  uint64_t chances;  // Chances: the address of a probability for each element, floats, or doubles where those are drawn
  Law law;
  Element element;
  uint8_t wide;  // Integers are made of 64 bits
  uint8_t axes;
  uint32_t unused;
};
static_assert(sizeof(Draw) == 96, "as Python packs it");

struct Axis {
  uint64_t length;
  int64_t step;  // bytes
};

enum class Level { Portable, Avx2, Avx512 };  // the numbers are the same
Level best_level();                           // of this processor

// Not 0: a probability was none. That is what cudaErrorAssert is, and what PyTorch's kernel ends with.
constexpr int kAssertFailed = 710;
int draw(const Draw& draw, const Axis* axes, Level level = best_level());

// For a queue: the packed bytes; false where they make no sense.
bool readable(const void* packed, size_t nbytes);
int draw_packed(const void* packed);

// What it touches, gaps between the axes' steps and all.
struct Span {
  uintptr_t address;
  size_t nbytes;
};
Span written(const void* packed);
Span consulted(const void* packed);  // the chances, else nothing

}  // namespace forebay
