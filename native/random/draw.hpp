// Random fills: each element gets the number that PyTorch's kernels give it on a GPU with the same number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay {

// BernoulliTensor, Poisson: each element has a probability or rate of its own.
enum class Distribution : uint8_t {
  Uniform,
  Normal,
  Exponential,
  Bernoulli,
  Integers,
  BernoulliTensor,
  Cauchy,
  LogNormal,
  Geometric,
  Poisson
};
enum class Element : uint8_t { Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64 };

// Work of one kernel, as packed by Python; followed by the axes of the filled memory, fastest first.
struct Draw {
  uint64_t address, count;
  uint64_t seed, offset;  // offset in words, a multiple of 4
  uint64_t threads;       // a multiple of 256
  // Uniform: from, to, to - from. Normal, LogNormal: mean, standard deviation. Exponential: rate. Bernoulli, Geometric:
  // probability. Cauchy: median, scale.
  double a, b, c;
  uint64_t range;          // Integers: number of values, 0 for 2^64
  int64_t base;            // Integers: the smallest value
  uint64_t probabilities;  // address of one probability or rate per element; doubles if F64 is drawn, else floats
  Distribution distribution;
  Element element;
  uint8_t is_64bit;  // Integers are made of 64 random bits
  uint8_t axes;
  uint32_t unused;
};
static_assert(sizeof(Draw) == 96, "Python packs draws of 96 bytes");

struct Axis {
  uint64_t length;
  int64_t step;  // bytes
};

enum class Level { Portable, Avx2, Avx512 };  // all levels give the same numbers
Level best_level();                           // of this processor

// Error code of a probability outside [0, 1] or a negative rate: cudaErrorAssert, as PyTorch's kernels fail with.
constexpr int kAssertFailed = 710;
int draw(const Draw& draw, const Axis* axes, Level level = best_level());  // returns 0 or an error code

// Packed draws, for queues.
bool is_valid_draw(const void* packed, size_t nbytes);
int run_packed_draw(const void* packed);

// Memory that a draw touches, including gaps between the axes' steps.
struct Span {
  uintptr_t address;
  size_t nbytes;
};
Span written_span(const void* packed);
Span read_span(const void* packed);  // the probabilities or rates; empty for other distributions

}  // namespace forebay
