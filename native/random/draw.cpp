#include "random/draw.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "base/c_api.hpp"
#include "random/philox.hpp"
#include "random/poisson.hpp"
#include "random/stored_types.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCHED 1  // the kernel is compiled for three instruction sets
#include <immintrin.h>
#endif

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
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return avx2 && avx512 ? Level::Avx512 : avx2 ? Level::Avx2 : Level::Portable;
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

bool is_valid_draw(const void* packed, size_t nbytes) {
  Draw head;
  if (nbytes < sizeof head) return false;
  std::memcpy(&head, packed, sizeof head);
  if (nbytes != sizeof head + head.axes * sizeof(Axis) || head.distribution > Distribution::Poisson ||
      head.element > Element::F64) {
    return false;
  }
  if (head.count && !head.address) return false;
  const bool integers = head.distribution == Distribution::Integers && !head.is_64bit;
  return head.threads && head.threads % 256 == 0 && head.offset % 4 == 0 &&
         (!integers || (head.range && head.range >> 32 == 0));
}

int run_packed_draw(const void* packed) {
  const Unpacked unpacked(packed);
  return draw(unpacked.head, unpacked.axes);
}

Span written_span(const void* packed) {
  constexpr size_t kSizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};  // by Element
  const Unpacked unpacked(packed);
  const size_t size = kSizes[static_cast<size_t>(unpacked.head.element)];
  if (!unpacked.head.count) return {unpacked.head.address, 0};
  if (!unpacked.head.axes) return {unpacked.head.address, unpacked.head.count * size};
  Span span{unpacked.head.address, size};
  for (size_t i = 0; i < unpacked.head.axes; ++i) {
    const int64_t reach = static_cast<int64_t>(unpacked.axes[i].length - 1) * unpacked.axes[i].step;
    if (reach < 0) span.address -= static_cast<uintptr_t>(-reach);
    span.nbytes += static_cast<size_t>(reach < 0 ? -reach : reach);
  }
  return span;
}

Span read_span(const void* packed) {
  const Unpacked unpacked(packed);
  const size_t element_size = unpacked.head.element == Element::F64 ? sizeof(double) : sizeof(float);
  const Distribution distribution = unpacked.head.distribution;
  const bool reads = distribution == Distribution::BernoulliTensor || distribution == Distribution::Poisson;
  return {unpacked.head.probabilities, reads ? unpacked.head.count * element_size : 0};
}

}  // namespace forebay

// For backends/common/draw_encoding.py. Draws on the calling thread; -1: the draw is invalid.
EXPORTED int forebay_draw_now(const void* packed, size_t nbytes) noexcept {
  return forebay::is_valid_draw(packed, nbytes) ? forebay::run_packed_draw(packed) : -1;
}

EXPORTED bool forebay_is_valid_draw(const void* packed, size_t nbytes) noexcept {
  return forebay::is_valid_draw(packed, nbytes);
}

EXPORTED void forebay_draw_written(const void* packed, uintptr_t* address, size_t* nbytes) noexcept {
  const forebay::Span span = forebay::written_span(packed);
  *address = span.address;
  *nbytes = span.nbytes;
}
