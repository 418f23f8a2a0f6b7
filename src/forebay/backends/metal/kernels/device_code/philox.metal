// Philox4x32-10 and the float conversions of native/random/philox.hpp, with the same operations in the same order, so
// that the numbers are equal bit for bit. Metal's language is C++14 with address spaces and without doubles, so that
// the header itself cannot be compiled. Compile without fast math. Constants are decimal, with the 9 digits that
// identify a float, as C++14 has no hexadecimal ones.
#include <metal_stdlib>
using namespace metal;

struct Words {
  uint x, y, z, w;
};

inline Words words(ulong seed, ulong subsequence, ulong draw) {
  uint a = uint(draw), b = uint(draw >> 32);
  uint c = uint(subsequence), d = uint(subsequence >> 32);
  uint k = uint(seed), l = uint(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const ulong p = ulong(0xD2511F53u) * a, q = ulong(0xCD9E8D57u) * c;
    a = uint(q >> 32) ^ b ^ k;
    b = uint(q);
    c = uint(p >> 32) ^ d ^ l;
    d = uint(p);
    k += 0x9E3779B9u;
    l += 0xBB67AE85u;
  }
  return Words{a, b, c, d};
}

inline float uniform_number(uint x) { return float(x) * 2.32830644e-10f + 1.16415322e-10f; }

inline float log_of(float u) {
  const uint raw = as_type<uint>(u);
  const uint exponent = (raw - 0x3F2AAAABu) & 0xFF800000u;
  const float e = float(int(exponent)) * 1.1920929e-07f;
  const float f = as_type<float>(raw - exponent) - 1.0f;
  float p = fma(-0.130188569f, f, 0.140846103f);
  p = fma(p, f, -0.121486276f);
  p = fma(p, f, 0.139806107f);
  p = fma(p, f, -0.166842356f);
  p = fma(p, f, 0.200122997f);
  p = fma(p, f, -0.249996692f);
  p = fma(p, f, 0.333331823f);
  p = fma(p, f, -0.5f);
  return fma(e, 0.693147182f, fma(f * p, f, f));
}

// Two numbers of the standard normal distribution, by Box and Muller.
inline float2 normal_numbers(uint x, uint y) {
  constexpr float kTurn = 2.3283064e-10f * 6.2831855f;
  const float radius = precise::sqrt(-2.0f * log_of(uniform_number(x)));
  const float angle = fma(float(y), kTurn, kTurn / 2.0f);
  const int quarters = int(fma(angle, 0.63661977f, 0.5f));
  const float q = float(quarters);
  const float r = fma(q, 4.37113883e-8f, fma(q, -1.57079637f, angle));
  const float square = r * r;
  float sine = fma(1.0f / 362880, square, -1.0f / 5040);
  sine = fma(sine, square, 1.0f / 120);
  sine = fma(sine, square, -1.0f / 6);
  float cosine = fma(-1.0f / 3628800, square, 1.0f / 40320);
  cosine = fma(cosine, square, -1.0f / 720);
  cosine = fma(cosine, square, 1.0f / 24);
  cosine = fma(cosine, square, -0.5f);
  const float s = fma(sine * square, r, r), c = fma(cosine, square, 1.0f);
  const bool odd = quarters & 1;
  const float first = odd ? c : s, second = odd ? s : c;
  return float2((quarters & 2 ? -first : first) * radius, ((quarters + 1) & 2 ? -second : second) * radius);
}

// ---- Conversion of a float to 16 bits, rounding to nearest even

inline ushort bfloat16_of(float value) {
  const uint raw = as_type<uint>(value);
  const uint rounded = (raw + 0x7FFF + (raw >> 16 & 1)) >> 16;
  return value != value ? ushort(0x7FC0) : ushort(rounded);
}

inline ushort float16_of(float value) {
  const uint raw = as_type<uint>(value), sign = raw >> 16 & 0x8000, size = raw & 0x7FFFFFFF;
  const uint tiny = as_type<uint>(as_type<float>(size) + 0.5f) - 0x3F000000u;
  const uint normal = (size - 0x38000000u + 0xFFF + (size >> 13 & 1)) >> 13;
  const uint overflow = size > 0x7F800000u ? 0x7E00 : 0x7C00;
  return ushort(sign | (size >= 0x477FF000u ? overflow : size < 0x38800000u ? tiny : normal));
}
