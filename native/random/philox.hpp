// Philox4x32-10 and the conversions of its words as in NVIDIA's cuRAND on a GPU, one number at a time. Compile with
// -ffp-contract=off: every product and sum that a GPU fuses is explicit here, and no other may be fused.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define FOREBAY_OUTLINED
#if defined(__CUDACC__)
#undef FOREBAY_OUTLINED
#define FOREBAY_INLINE __device__ __forceinline__
#define FOREBAY_OUTLINED __noinline__  // a GPU's compiler inlines nearly everything
#elif defined(__GNUC__)
#define FOREBAY_INLINE inline __attribute__((always_inline))  // into functions compiled for a given instruction set
#else
#define FOREBAY_INLINE inline
#endif

namespace forebay::philox {

struct Words {
  uint32_t x, y, z, w;
};

// Returns the words of one call; `draw` is the number of the call in its subsequence.
FOREBAY_INLINE Words words(uint64_t seed, uint64_t subsequence, uint64_t draw) {
  uint32_t a = static_cast<uint32_t>(draw), b = static_cast<uint32_t>(draw >> 32);
  uint32_t c = static_cast<uint32_t>(subsequence), d = static_cast<uint32_t>(subsequence >> 32);
  uint32_t k = static_cast<uint32_t>(seed), l = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xD2511F53} * a, q = uint64_t{0xCD9E8D57} * c;
    a = static_cast<uint32_t>(q >> 32) ^ b ^ k;
    b = static_cast<uint32_t>(q);
    c = static_cast<uint32_t>(p >> 32) ^ d ^ l;
    d = static_cast<uint32_t>(p);
    k += 0x9E3779B9;
    l += 0xBB67AE85;
  }
  return {a, b, c, d};
}

// Both overloads return numbers in (0, 1]. A product with a power of two is exact, so fusing it with the sum has no
// effect.
FOREBAY_INLINE float uniform(uint32_t x) { return static_cast<float>(x) * 0x1p-32f + 0x1p-33f; }

FOREBAY_INLINE double uniform(uint32_t x, uint32_t y) {
  return static_cast<double>(x ^ (uint64_t{y} << 21)) * 0x1p-53 + 0x1p-54;
}

FOREBAY_INLINE uint64_t wide(uint32_t x, uint32_t y) { return uint64_t{x} << 32 | y; }

FOREBAY_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FOREBAY_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class To, class From>
FOREBAY_INLINE To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Evaluates a polynomial given its coefficients, highest power first. Recursive rather than a loop, so that the
// caller's loop can be vectorised.
template <class Real>
FOREBAY_INLINE Real polynomial(Real, Real last) {
  return last;
}
template <class Real, class... Others>
FOREBAY_INLINE Real polynomial(Real x, Real highest, Real next, Others... others) {
  return polynomial<Real>(x, fused(highest, x, next), others...);
}

// Logarithm of a normal number in (0, 1], bit for bit that of CUDA's logf: its operations as seen in the PTX of
// programs that call it.
FOREBAY_INLINE float log(float u) {
  const uint32_t raw = bits<uint32_t>(u);
  const uint32_t exponent = (raw - 0x3F2AAAABu) & 0xFF800000u;
  const float e = static_cast<float>(static_cast<int32_t>(exponent)) * 0x1p-23f;
  const float f = bits<float>(raw - exponent) - 1.0f;
  const float p = polynomial(f, -0x1.0aa04ep-3f, 0x1.2073ecp-3f, -0x1.f19b98p-4f, 0x1.1e52aap-3f, -0x1.55b172p-3f,
                             0x1.99da16p-3f, -0x1.fffe44p-3f, 0x1.5554f0p-2f, -0.5f);
  return fused(e, 0x1.62e430p-1f, fused(f * p, f, f));
}

// Logarithm of a positive normal number, within 1 ulp: 2 atanh(s) with s = f / (2 + f), 1 + f the mantissa, as a
// series.
FOREBAY_INLINE double log(double u) {
  const uint64_t raw = bits<uint64_t>(u);
  const uint64_t exponent = (raw - 0x3FE6A09E667F3BCDull) & 0xFFF0000000000000ull;  // 1 + f is in [√½, √2)
  const double e = static_cast<double>(static_cast<int32_t>(exponent >> 32)) * 0x1p-20;
  const double f = bits<double>(raw - exponent) - 1.0;
  const double s = f / (2.0 + f), square = s * s, half = 0.5 * f * f;
  const double p = polynomial(square, 1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,
                              1.0 / 7, 1.0 / 5, 1.0 / 3);
  const double rest = s * (half + 2.0 * square * p);  // log(1 + f) = f - half + rest
  return fused(e, 0x1.62e42fee00000p-1, f - (half - fused(e, 0x1.a39ef35793c76p-33, rest)));
}

FOREBAY_INLINE double log_or_infinity(double u) { return u > 0 ? log(u) : -INFINITY; }

// log(1 - p), for p from 0 to 1: the second term is what rounding 1 - p has lost.
FOREBAY_INLINE double log_of_rest(double p) {
  const double u = 1.0 - p;
  return u > 0 ? log(u) - ((u - 1.0) + p) / u : -INFINITY;
}

template <class Real>
struct Pair {
  Real x, y;
};

// Sine and cosine of r plus a number of quarter turns, with |r| at most an eighth of a turn, by Taylor series.
template <class Real>
FOREBAY_INLINE Pair<Real> sin_cos(Real r, Real sine, Real cosine, int32_t quarters) {
  const Real s = fused(sine * (r * r), r, r), c = fused(cosine, r * r, Real(1));
  const bool odd = quarters & 1;
  const Real x = odd ? c : s, y = odd ? s : c;
  return {quarters & 2 ? -x : x, (quarters + 1) & 2 ? -y : y};
}

FOREBAY_INLINE Pair<float> sin_cos(float r, int32_t quarters) {
  const float square = r * r;
  const float sine = polynomial(square, 1.0f / 362880, -1.0f / 5040, 1.0f / 120, -1.0f / 6);
  const float cosine = polynomial(square, -1.0f / 3628800, 1.0f / 40320, -1.0f / 720, 1.0f / 24, -0.5f);
  return sin_cos(r, sine, cosine, quarters);
}

FOREBAY_INLINE Pair<double> sin_cos(double r, int32_t quarters) {
  const double square = r * r;
  const double sine = polynomial(square, 1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
                                 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6);
  const double cosine = polynomial(square, -1.0 / 6402373705728000, 1.0 / 20922789888000, -1.0 / 87178291200,
                                   1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5);
  return sin_cos(r, sine, cosine, quarters);
}

// Two numbers of the standard normal distribution, by Box and Muller. A GPU computes float sine and cosine in hardware
// with an error of up to 2^-21; these are exact to rounding.
FOREBAY_INLINE Pair<float> normal(uint32_t x, uint32_t y) {
  constexpr float kTurn = 2.3283064e-10f * 6.2831855f;
  const float radius = __builtin_sqrtf(-2.0f * log(uniform(x)));
  const float angle = fused(static_cast<float>(y), kTurn, kTurn / 2.0f);
  const int32_t quarters = static_cast<int32_t>(fused(angle, 0.63661977f, 0.5f));
  const float q = static_cast<float>(quarters);
  const Pair<float> at = sin_cos(fused(q, 4.37113883e-8f, fused(q, -1.57079637f, angle)), quarters);
  return {at.x * radius, at.y * radius};
}

FOREBAY_INLINE Pair<double> normal(Words w) {
  const double radius = __builtin_sqrt(-2.0 * log(uniform(w.x, w.y)));
  const double half_turns = static_cast<double>(w.z ^ (uint64_t{w.w} << 21)) * 0x1p-52 + 0x1p-53;
  const int32_t quarters = static_cast<int32_t>(half_turns * 2.0 + 0.5);
  const double r = half_turns - quarters * 0.5;  // exact
  const Pair<double> at = sin_cos(fused(r, 3.141592653589793, r * 1.2246467991473532e-16), quarters);
  return {at.x * radius, at.y * radius};
}

// -log(u) / rate, with u kept below 1 so that the result is never 0, even in half precision.
template <class Real>
FOREBAY_INLINE Real exponential(Real u, Real rate) {
  constexpr Real kHalfEpsilon = sizeof(Real) == 8 ? Real(0x1p-53) : Real(0x1p-24);
  return Real(-1) / rate * (u >= Real(1) - kHalfEpsilon ? -kHalfEpsilon : log(u));
}

// e^x within 1 ulp: 2^k e^r by Taylor series, with x = k ln 2 + r.
FOREBAY_INLINE double exp(double x) {
  const double bounded = x > 710.0 ? 710.0 : x > -746.0 ? x : -746.0;  // beyond: infinite, 0; not a number: 0, too
  const int32_t k = static_cast<int32_t>(bounded * 1.4426950408889634 + (bounded < 0 ? -0.5 : 0.5));
  const double r = fused(double(k), -0x1.a39ef35793c76p-33, fused(double(k), -0x1.62e42fee00000p-1, bounded));
  const double p = polynomial(r, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                              1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0);
  const int64_t half = k / 2;  // 2^k itself may not be a normal number
  const double scaled = p * bits<double>((half + 1023) << 52) * bits<double>((k - half + 1023) << 52);
  return x == x ? scaled : x;
}

// Tangent of an angle from -pi / 2 to pi / 2, within 2 ulp.
FOREBAY_INLINE double tan(double angle) {
  const int32_t quarters = static_cast<int32_t>(angle * 0.63661977236758134 + (angle < 0 ? -0.5 : 0.5));
  const double q = quarters;
  const Pair<double> at = sin_cos(fused(q, -6.123233995736766e-17, fused(q, -1.5707963267948966, angle)), quarters);
  return at.x / at.y;
}

// A GPU computes the float tangent, exponential and logarithm of the next functions in hardware, with an error of a few
// of the last bits; these are exact to rounding.

// The quantile of a Cauchy distribution. PyTorch keeps floats away from 0 and 1, where a GPU's tangent overflows.
FOREBAY_INLINE float cauchy(float u, float median, float scale) {
  const float below = u > 1.0f - 0x1p-23f ? 1.0f - 0x1p-23f : u, inside = below < 0x1p-23f ? 0x1p-23f : below;
  const double angle = 3.14159274f * (inside - 0.5f);
  return fused(scale, static_cast<float>(tan(angle)), median);
}

FOREBAY_INLINE double cauchy(double u, double median, double scale) {
  return fused(scale, tan(3.141592653589793 * (u - 0.5)), median);
}

// ---- Conversion of a float to 16 bits, rounding to nearest even

FOREBAY_INLINE uint16_t bfloat16(float value) {
  const uint32_t raw = bits<uint32_t>(value);
  const uint32_t rounded = (raw + 0x7FFF + (raw >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(value != value ? 0x7FC0 : rounded);
}

FOREBAY_INLINE uint16_t float16(float value) {
  const uint32_t raw = bits<uint32_t>(value), sign = raw >> 16 & 0x8000, size = raw & 0x7FFFFFFF;
  // Below 2^-14 the sum with 0.5 rounds where float16 does; its low bits are the result.
  const uint32_t tiny = bits<uint32_t>(bits<float>(size) + 0.5f) - 0x3F000000u;
  const uint32_t normal = (size - 0x38000000u + 0xFFF + (size >> 13 & 1)) >> 13;
  const uint32_t overflow = size > 0x7F800000u ? 0x7E00 : 0x7C00;
  return static_cast<uint16_t>(sign | (size >= 0x477FF000u ? overflow : size < 0x38800000u ? tiny : normal));
}

// x % below, given `inverse`, 2^64 / below rounded up: a division would take ten times as long.
FOREBAY_INLINE uint32_t remainder(uint32_t x, uint32_t below, uint64_t inverse) {
#if defined(__SIZEOF_INT128__)
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<uint32_t>(static_cast<Wide>(inverse * x) * below >> 64);
#else
  return (void)inverse, x % below;
#endif
}

}  // namespace forebay::philox
