#include "draw.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "philox.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCHED 1  // the same kernel for three kinds of processor
#include <immintrin.h>
#endif

namespace penstock {
namespace {

enum class Float16 : uint16_t {};
enum class BFloat16 : uint16_t {};

// As C++ converts, and PyTorch: what has 16 bits by way of a float.
template <class Stored, class Number>
PENSTOCK_INLINE Stored store(Number number) {
  if constexpr (std::is_same_v<Stored, Float16>) {
    return static_cast<Stored>(philox::float16(static_cast<float>(number)));
  } else if constexpr (std::is_same_v<Stored, BFloat16>) {
    return static_cast<Stored>(philox::bfloat16(static_cast<float>(number)));
  } else {
    return static_cast<Stored>(number);
  }
}

template <class Stored>
PENSTOCK_INLINE bool same(Stored one, Stored other) {
  if constexpr (std::is_arithmetic_v<Stored>) {
    return one == other;
  } else {
    const uint32_t a = static_cast<uint16_t>(one), b = static_cast<uint16_t>(other);
    return (a == b) | !((a | b) & 0x7FFF);  // both zeros; without a branch
  }
}

}  // namespace
}  // namespace penstock

#ifndef DISPATCHED
#define LEVEL portable
#include "draw_kernel.hpp"
#undef LEVEL
#else
#define LEVEL portable
#define BYTES 16
#define MULTIPLY(a, b) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#include "draw_kernel.hpp"
#undef LEVEL
#undef BYTES
#undef MULTIPLY

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LEVEL avx2
#define BYTES 32
#define MULTIPLY(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#include "draw_kernel.hpp"
#undef LEVEL
#undef BYTES
#undef MULTIPLY
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")
#define LEVEL avx512
#define BYTES 64
#define MULTIPLY(a, b) _mm512_maskz_mul_epu32(0xFF, (__m512i)(a), (__m512i)(b))
#include "draw_kernel.hpp"
#pragma GCC pop_options
#endif

namespace penstock {

Level best_level() {
#ifdef DISPATCHED
  static const Level best = [] {
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    const bool good = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return good && wide ? Level::Avx512 : good ? Level::Avx2 : Level::Portable;
  }();
  return best;
#else
  return Level::Portable;
#endif
}

int draw(const Draw& draw, const Axis* axes, Level level) {
  level = std::min(level, best_level());
#ifdef DISPATCHED
  if (level == Level::Avx512) return avx512::run(draw, axes);
  if (level == Level::Avx2) return avx2::run(draw, axes);
#endif
  return portable::run(draw, axes);
}

bool readable(const void* packed, size_t nbytes) {
  Draw head;
  if (nbytes < sizeof head) return false;
  std::memcpy(&head, packed, sizeof head);
  if (nbytes != sizeof head + head.axes * sizeof(Axis) || head.law > Law::Chances || head.element > Element::F64) {
    return false;
  }
  const bool integers = head.law == Law::Integers && !head.wide;
  return head.threads && head.threads % 256 == 0 && head.offset % 4 == 0 &&
         (!integers || (head.range && head.range >> 32 == 0));
}

int draw_packed(const void* packed) {
  Draw head;
  std::memcpy(&head, packed, sizeof head);
  Axis axes[255];
  std::memcpy(axes, static_cast<const char*>(packed) + sizeof head, head.axes * sizeof(Axis));
  return draw(head, axes);
}

}  // namespace penstock
