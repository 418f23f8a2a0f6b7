#include "random/draw.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "base/exported.hpp"
#include "random/philox.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCHED 1  // the same kernel for three kinds of processor
#include <immintrin.h>
#endif

namespace forebay {
namespace {

enum class Float16 : uint16_t {};
enum class BFloat16 : uint16_t {};

// As C++ converts, and PyTorch: what has 16 bits by way of a float.
template <class Stored, class Number>
FOREBAY_INLINE Stored store(Number number) {
  if constexpr (std::is_same_v<Stored, Float16>) {
    return static_cast<Stored>(philox::float16(static_cast<float>(number)));
  } else if constexpr (std::is_same_v<Stored, BFloat16>) {
    return static_cast<Stored>(philox::bfloat16(static_cast<float>(number)));
  } else {
    return static_cast<Stored>(number);
  }
}

template <class Stored>
FOREBAY_INLINE bool same(Stored one, Stored other) {
  if constexpr (std::is_arithmetic_v<Stored>) {
    return one == other;
  } else {
    const uint32_t a = static_cast<uint16_t>(one), b = static_cast<uint16_t>(other);
    return (a == b) | !((a | b) & 0x7FFF);  // both zeros; without a branch
  }
}

}  // namespace
}  // namespace forebay

#ifndef DISPATCHED
#define LEVEL portable
#include "random/draw_kernel.hpp"
#undef LEVEL
#else
#define LEVEL portable
#define BYTES 16
#define MULTIPLY(a, b) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#include "random/draw_kernel.hpp"
#undef LEVEL
#undef BYTES
#undef MULTIPLY

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LEVEL avx2
#define BYTES 32
#define MULTIPLY(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#include "random/draw_kernel.hpp"
#undef LEVEL
#undef BYTES
#undef MULTIPLY
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")
#define LEVEL avx512
#define BYTES 64
#define MULTIPLY(a, b) _mm512_maskz_mul_epu32(0xFF, (__m512i)(a), (__m512i)(b))
#include "random/draw_kernel.hpp"
#pragma GCC pop_options
#endif

namespace forebay {

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

namespace {
struct Unpacked {
  Draw head;
  Axis axes[255];

  explicit Unpacked(const void* packed) {
    std::memcpy(&head, packed, sizeof head);
    std::memcpy(axes, static_cast<const char*>(packed) + sizeof head, head.axes * sizeof(Axis));
  }
};
}  // namespace

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
  const Unpacked it(packed);
  return draw(it.head, it.axes);
}

Span written(const void* packed) {
  constexpr size_t kSizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};  // of the elements, in their order
  const Unpacked it(packed);
  const size_t size = kSizes[static_cast<size_t>(it.head.element)];
  if (!it.head.count) return {it.head.address, 0};
  if (!it.head.axes) return {it.head.address, it.head.count * size};
  Span span{it.head.address, size};
  for (size_t i = 0; i < it.head.axes; ++i) {
    const int64_t reach = static_cast<int64_t>(it.axes[i].length - 1) * it.axes[i].step;
    if (reach < 0) span.address -= static_cast<uintptr_t>(-reach);
    span.nbytes += static_cast<size_t>(reach < 0 ? -reach : reach);
  }
  return span;
}

Span consulted(const void* packed) {
  const Unpacked it(packed);
  const size_t each = it.head.element == Element::F64 ? sizeof(double) : sizeof(float);
  return {it.head.chances, it.head.law == Law::Chances ? it.head.count * each : 0};
}

}  // namespace forebay

// For backends/emulated/queue.py.
EXPORTED void forebay_draw_written(const void* packed, uintptr_t* address, size_t* nbytes) noexcept {
  const forebay::Span span = forebay::written(packed);
  *address = span.address;
  *nbytes = span.nbytes;
}
