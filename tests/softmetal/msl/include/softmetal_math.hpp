// Functions of Metal's library on numbers and vectors.
#pragma once
#pragma GCC system_header

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF INFINITY
#define MAXFLOAT FLT_MAX
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define HALF_MAX half(65504.0f)
#define CHAR_BIT 8
#define INT_MAX 0x7fffffff
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 0xffffffffu
#define LONG_MAX 0x7fffffffffffffffl
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 0xfffffffffffffffful
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define M_PI_F 3.14159274101257324219f
#define M_PI_2_F 1.57079637050628662109f
#define M_PI_4_F 0.785398185253143310547f
#define M_1_PI_F 0.318309873342514038086f
#define M_2_PI_F 0.636619746685028076172f
#define M_E_F 2.71828174591064453125f
#define M_LN2_F 0.693147182464599609375f
#define M_LN10_F 2.30258512496948242188f
#define M_LOG2E_F 1.44269502162933349609f
#define M_SQRT2_F 1.41421353816986083984f
#define M_SQRT1_2_F 0.707106769084930419922f

namespace metal {

template <class T>
struct numeric_limits;
#define SOFTMETAL_LIMITS(TYPE, LOWEST, MIN, MAX, EPSILON) \
  template <>                                             \
  struct numeric_limits<TYPE> {                           \
    static TYPE lowest() { return TYPE(LOWEST); }         \
    static TYPE min() { return TYPE(MIN); }               \
    static TYPE max() { return TYPE(MAX); }               \
    static TYPE epsilon() { return TYPE(EPSILON); }       \
    static TYPE infinity() { return TYPE(INFINITY); }     \
    static TYPE quiet_NaN() { return TYPE(NAN); }         \
  }
SOFTMETAL_LIMITS(float, -FLT_MAX, FLT_MIN, FLT_MAX, FLT_EPSILON);
SOFTMETAL_LIMITS(half, -65504.0f, 0x1p-14f, 65504.0f, 0x1p-10f);
SOFTMETAL_LIMITS(bfloat, -0x1.fep127f, 0x1p-126f, 0x1.fep127f, 0x1p-7f);
#undef SOFTMETAL_LIMITS
#define SOFTMETAL_LIMITS(TYPE, MIN, MAX)           \
  template <>                                      \
  struct numeric_limits<TYPE> {                    \
    static constexpr TYPE lowest() { return MIN; } \
    static constexpr TYPE min() { return MIN; }    \
    static constexpr TYPE max() { return MAX; }    \
  }
SOFTMETAL_LIMITS(bool, false, true);
SOFTMETAL_LIMITS(char, -128, 127);
SOFTMETAL_LIMITS(int8_t, -128, 127);
SOFTMETAL_LIMITS(uchar, 0, 255);
SOFTMETAL_LIMITS(short, -32768, 32767);
SOFTMETAL_LIMITS(ushort, 0, 65535);
SOFTMETAL_LIMITS(int, INT_MIN, INT_MAX);
SOFTMETAL_LIMITS(uint, 0, UINT_MAX);
SOFTMETAL_LIMITS(long, LONG_MIN, LONG_MAX);
SOFTMETAL_LIMITS(ulong, 0, ULONG_MAX);

template <class T, class U>
struct is_same {
  static constexpr bool value = false;
};
template <class T>
struct is_same<T, T> {
  static constexpr bool value = true;
};
template <class T, class U>
constexpr bool is_same_v = is_same<T, U>::value;
template <bool C, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool C, class T = void>
using enable_if_t = typename enable_if<C, T>::type;
template <bool C, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool C, class T, class F>
using conditional_t = typename conditional<C, T, F>::type;
template <class T>
struct is_floating_point {
  static constexpr bool value = is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>;
};
template <class T>
constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
struct is_integral {
  static constexpr bool value = is_same_v<T, bool> || is_same_v<T, char> || is_same_v<T, int8_t> ||
                                is_same_v<T, uchar> || is_same_v<T, short> || is_same_v<T, ushort> ||
                                is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, long> || is_same_v<T, ulong>;
};
template <class T>
constexpr bool is_integral_v = is_integral<T>::value;

template <class To, class From>
inline To as_type(const From& from) {
  return softmetal_bits<To>(from);
}

// One argument: float, half, bfloat and vectors of them.
#define SOFTMETAL_FUNCTION1(NAME, EXPRESSION)                     \
  inline float NAME(float x) { return EXPRESSION; }               \
  inline half NAME(half x) { return half(NAME(float(x))); }       \
  inline bfloat NAME(bfloat x) { return bfloat(NAME(float(x))); } \
  template <class T, int N>                                       \
  inline vec<T, N> NAME(const vec<T, N>& x) {                     \
    vec<T, N> out;                                                \
    for (int i = 0; i < N; i++) out[i] = NAME(x[i]);              \
    return out;                                                   \
  }
#define SOFTMETAL_FUNCTION2(NAME, EXPRESSION)                                         \
  inline float NAME(float x, float y) { return EXPRESSION; }                          \
  inline half NAME(half x, half y) { return half(NAME(float(x), float(y))); }         \
  inline bfloat NAME(bfloat x, bfloat y) { return bfloat(NAME(float(x), float(y))); } \
  template <class T, int N>                                                           \
  inline vec<T, N> NAME(const vec<T, N>& x, const vec<T, N>& y) {                     \
    vec<T, N> out;                                                                    \
    for (int i = 0; i < N; i++) out[i] = NAME(x[i], y[i]);                            \
    return out;                                                                       \
  }
#define SOFTMETAL_MATH                                                                 \
  SOFTMETAL_FUNCTION1(acos, __builtin_acosf(x))                                        \
  SOFTMETAL_FUNCTION1(acosh, __builtin_acoshf(x))                                      \
  SOFTMETAL_FUNCTION1(asin, __builtin_asinf(x))                                        \
  SOFTMETAL_FUNCTION1(asinh, __builtin_asinhf(x))                                      \
  SOFTMETAL_FUNCTION1(atan, __builtin_atanf(x))                                        \
  SOFTMETAL_FUNCTION1(atanh, __builtin_atanhf(x))                                      \
  SOFTMETAL_FUNCTION1(ceil, __builtin_ceilf(x))                                        \
  SOFTMETAL_FUNCTION1(cos, __builtin_cosf(x))                                          \
  SOFTMETAL_FUNCTION1(cosh, __builtin_coshf(x))                                        \
  SOFTMETAL_FUNCTION1(cospi, float(__builtin_cos(double(x) * 3.14159265358979323846))) \
  SOFTMETAL_FUNCTION1(exp, __builtin_expf(x))                                          \
  SOFTMETAL_FUNCTION1(exp10, __builtin_powf(10.0f, x))                                 \
  SOFTMETAL_FUNCTION1(exp2, __builtin_exp2f(x))                                        \
  SOFTMETAL_FUNCTION1(fabs, __builtin_fabsf(x))                                        \
  SOFTMETAL_FUNCTION1(floor, __builtin_floorf(x))                                      \
  SOFTMETAL_FUNCTION1(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f)) \
  SOFTMETAL_FUNCTION1(log, __builtin_logf(x))                                          \
  SOFTMETAL_FUNCTION1(log10, __builtin_log10f(x))                                      \
  SOFTMETAL_FUNCTION1(log2, __builtin_log2f(x))                                        \
  SOFTMETAL_FUNCTION1(rint, __builtin_rintf(x))                                        \
  SOFTMETAL_FUNCTION1(round, __builtin_roundf(x))                                      \
  SOFTMETAL_FUNCTION1(rsqrt, float(1.0 / __builtin_sqrt(double(x))))                   \
  SOFTMETAL_FUNCTION1(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))       \
  SOFTMETAL_FUNCTION1(sin, __builtin_sinf(x))                                          \
  SOFTMETAL_FUNCTION1(sinh, __builtin_sinhf(x))                                        \
  SOFTMETAL_FUNCTION1(sinpi, float(__builtin_sin(double(x) * 3.14159265358979323846))) \
  SOFTMETAL_FUNCTION1(sqrt, __builtin_sqrtf(x))                                        \
  SOFTMETAL_FUNCTION1(tan, __builtin_tanf(x))                                          \
  SOFTMETAL_FUNCTION1(tanh, __builtin_tanhf(x))                                        \
  SOFTMETAL_FUNCTION1(trunc, __builtin_truncf(x))                                      \
  SOFTMETAL_FUNCTION2(atan2, __builtin_atan2f(x, y))                                   \
  SOFTMETAL_FUNCTION2(copysign, __builtin_copysignf(x, y))                             \
  SOFTMETAL_FUNCTION2(fdim, __builtin_fdimf(x, y))                                     \
  SOFTMETAL_FUNCTION2(fmax, __builtin_fmaxf(x, y))                                     \
  SOFTMETAL_FUNCTION2(fmin, __builtin_fminf(x, y))                                     \
  SOFTMETAL_FUNCTION2(fmod, __builtin_fmodf(x, y))                                     \
  SOFTMETAL_FUNCTION2(nextafter, __builtin_nextafterf(x, y))                           \
  SOFTMETAL_FUNCTION2(pow, __builtin_powf(x, y))                                       \
  SOFTMETAL_FUNCTION2(powr, __builtin_powf(x, y))                                      \
  SOFTMETAL_FUNCTION2(step, y < x ? 0.0f : 1.0f)                                       \
  inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }      \
  inline half fma(half x, half y, half z) { return half(__builtin_fmaf(x, y, z)); }    \
  inline float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }                \
  template <class T>                                                                   \
  inline T sincos(T x, T& cosine) {                                                    \
    cosine = cos(x);                                                                   \
    return sin(x);                                                                     \
  }

SOFTMETAL_MATH
namespace precise {
SOFTMETAL_MATH
template <class T>
inline T divide(T x, T y) {
  return x / y;
}
}  // namespace precise
namespace fast {
SOFTMETAL_MATH
template <class T>
inline T divide(T x, T y) {
  return x / y;
}
}  // namespace fast

#define SOFTMETAL_TEST(NAME, EXPRESSION)                    \
  inline bool NAME(float x) { return EXPRESSION; }          \
  template <class T, int N>                                 \
  inline vec<bool, N> NAME(const vec<T, N>& x) {            \
    vec<bool, N> out;                                       \
    for (int i = 0; i < N; i++) out[i] = NAME(float(x[i])); \
    return out;                                             \
  }
SOFTMETAL_TEST(isnan, __builtin_isnan(x))
SOFTMETAL_TEST(isinf, __builtin_isinf(x))
SOFTMETAL_TEST(isfinite, __builtin_isfinite(x))
SOFTMETAL_TEST(signbit, __builtin_signbit(x))

// min, max, clamp, abs of numbers of one type, and of vectors.
template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
template <class T, int N>
inline vec<T, N> min(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> out;
  for (int i = 0; i < N; i++) out[i] = min(a[i], b[i]);
  return out;
}
template <class T, int N>
inline vec<T, N> max(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> out;
  for (int i = 0; i < N; i++) out[i] = max(a[i], b[i]);
  return out;
}
template <class T>
inline T clamp(T x, Plain<T> low, Plain<T> high) {
  return min(max(x, low), high);
}
inline float abs(float x) { return __builtin_fabsf(x); }
inline half abs(half x) { return half(__builtin_fabsf(x)); }
inline bfloat abs(bfloat x) { return bfloat(__builtin_fabsf(x)); }
template <class T, class = enable_if_t<is_integral_v<T>>>
inline T abs(T x) {
  return x < 0 ? T(-x) : x;
}
template <class T, int N>
inline vec<T, N> abs(const vec<T, N>& x) {
  vec<T, N> out;
  for (int i = 0; i < N; i++) out[i] = abs(x[i]);
  return out;
}
template <class T>
inline T mix(T x, T y, Plain<T> a) {
  return x + (y - x) * a;
}
template <class T>
inline T sign(T x) {
  return T(x > T(0)) - T(x < T(0));
}
template <class T>
inline T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T, int N>
inline vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& c) {
  vec<T, N> out;
  for (int i = 0; i < N; i++) out[i] = c[i] ? b[i] : a[i];
  return out;
}
template <int N>
inline bool all(const vec<bool, N>& x) {
  for (int i = 0; i < N; i++)
    if (!x[i]) return false;
  return true;
}
template <int N>
inline bool any(const vec<bool, N>& x) {
  return !all(!x);
}
inline bool all(bool x) { return x; }
inline bool any(bool x) { return x; }
template <class T, int N>
inline T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = T(0);
  for (int i = 0; i < N; i++) sum = sum + a[i] * b[i];
  return sum;
}
template <class T, int N>
inline T length(const vec<T, N>& x) {
  return sqrt(dot(x, x));
}

// Integers.
inline uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
inline int mulhi(int a, int b) { return int((long(a) * b) >> 32); }
inline ulong mulhi(ulong a, ulong b) { return ulong(((unsigned __int128)(a)*b) >> 64); }
inline long mulhi(long a, long b) { return long(((__int128)(a)*b) >> 64); }
inline ushort mulhi(ushort a, ushort b) { return ushort((uint(a) * b) >> 16); }
inline short mulhi(short a, short b) { return short((int(a) * b) >> 16); }
inline int popcount(int x) { return __builtin_popcount(uint(x)); }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline ulong popcount(ulong x) { return ulong(__builtin_popcountl(x)); }
inline long popcount(long x) { return __builtin_popcountl(ulong(x)); }
inline uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32; }
inline int clz(int x) { return int(clz(uint(x))); }
inline ulong clz(ulong x) { return x ? ulong(__builtin_clzl(x)) : 64; }
inline uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32; }
inline int ctz(int x) { return int(ctz(uint(x))); }
inline ulong ctz(ulong x) { return x ? ulong(__builtin_ctzl(x)) : 64; }
template <class T>
inline T rotate(T x, Plain<T> by) {
  constexpr int bits = 8 * sizeof(T);
  int n = int(by) & (bits - 1);
  return n ? T(x << n | x >> (bits - n)) : x;
}
template <class T>
inline T reverse_bits(T x) {
  T out = 0;
  for (uint i = 0; i < 8 * sizeof(T); i++) out = T(out << 1 | (x >> i & 1));
  return out;
}
template <class T>
inline T extract_bits(T x, uint offset, uint bits) {
  return bits ? T(T(x << (8 * sizeof(T) - bits - offset)) >> (8 * sizeof(T) - bits)) : T(0);
}
template <class T>
inline T mad24(T a, T b, T c) {
  return a * b + c;
}
template <class T>
inline T mul24(T a, T b) {
  return a * b;
}
template <class T, int N>
inline vec<T, N> mulhi(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> out;
  for (int i = 0; i < N; i++) out[i] = mulhi(a[i], b[i]);
  return out;
}

}  // namespace metal

using metal::as_type;
