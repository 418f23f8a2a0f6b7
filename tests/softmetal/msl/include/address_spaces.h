// Metal's library for address_spaces.py: declarations only, in C++ for OpenCL.
#pragma once
#pragma clang system_header
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

// Names that OpenCL has, too, in another meaning.
#define atomic_int metal_atomic_int
#define atomic_uint metal_atomic_uint
#define atomic_ulong metal_atomic_ulong
#define atomic_float metal_atomic_float
#define memory_order metal_memory_order

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define CHAR_BIT 8
#define INT_MAX 0x7fffffff
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 0xffffffffu
#define LONG_MAX 0x7fffffffffffffffl
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 0xfffffffffffffffful
#define M_PI_F 3.14159274101257324219f
#define M_2_PI_F 0.636619746685028076172f

namespace metal {

template <class T, int N>
struct vec_of;
template <class T, int N>
using vec = typename vec_of<T, N>::type;

#define VECTOR(T, N)                                           \
  typedef T T##N __attribute__((ext_vector_type(N)));          \
  typedef T packed_##T##N __attribute__((ext_vector_type(N))); \
  template <>                                                  \
  struct vec_of<T, N> {                                        \
    typedef T##N type;                                         \
  };                                                           \
  template <class... A>                                        \
  T##N make_##T##N(A...);
#define VECTORS(T) VECTOR(T, 2) VECTOR(T, 3) VECTOR(T, 4)
VECTORS(char)
VECTORS(uchar)
VECTORS(short)
VECTORS(ushort)
VECTORS(int)
VECTORS(uint)
VECTORS(long)
VECTORS(ulong)
VECTORS(half)
VECTORS(float)
typedef uchar bool2 __attribute__((ext_vector_type(2)));
typedef uchar bool3 __attribute__((ext_vector_type(3)));
typedef uchar bool4 __attribute__((ext_vector_type(4)));

template <class T>
struct Same {
  typedef T type;
};
template <class T>
using Plain = typename Same<T>::type;
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
  typedef T type;
};
template <bool C, class T = void>
using enable_if_t = typename enable_if<C, T>::type;
template <class T>
struct numeric_limits {
  static T lowest();
  static T min();
  static T max();
  static T epsilon();
  static T infinity();
  static T quiet_NaN();
};

template <class To, class From>
To as_type(From);

#define OVERLOADS(NAME, MACRO) \
  MACRO(NAME, float) MACRO(NAME, half) MACRO(NAME, float2) MACRO(NAME, float3) MACRO(NAME, float4)
#define ONE(NAME, T) T NAME(T);
#define TWO(NAME, T) T NAME(T, T);
#define THREE(NAME, T) T NAME(T, T, T);
#define F1(NAME) OVERLOADS(NAME, ONE)
#define F2(NAME) OVERLOADS(NAME, TWO)
#define MATH                                                                                                           \
  F1(acos)                                                                                                             \
  F1(asin) F1(atan) F1(ceil) F1(cos) F1(cosh) F1(cospi) F1(exp) F1(exp10) F1(exp2) F1(fabs) F1(floor) F1(fract)        \
      F1(log) F1(log10) F1(log2) F1(rint) F1(round) F1(rsqrt) F1(saturate) F1(sin) F1(sinh) F1(sinpi) F1(sqrt) F1(tan) \
          F1(tanh) F1(trunc) F2(atan2) F2(copysign) F2(fmax) F2(fmin) F2(fmod) F2(pow) F2(powr)                        \
              OVERLOADS(fma, THREE) template <class T>                                                                 \
              T sincos(T, __private T&);                                                                               \
  template <class T>                                                                                                   \
  T divide(T, T);
MATH namespace precise { MATH }
namespace fast {
MATH
}
template <class T>
bool isnan(T);
template <class T>
bool isinf(T);
template <class T>
bool isfinite(T);
template <class T>
T min(T, T);
template <class T>
T max(T, T);
template <class T>
T clamp(T, Plain<T>, Plain<T>);
template <class T>
T abs(T);
template <class T>
T mix(T, T, Plain<T>);
template <class T>
T sign(T);
template <class T, class C>
T select(T, T, C);
template <class T>
bool all(T);
template <class T>
bool any(T);
template <class T>
auto dot(T a, T b) -> decltype(a.x);
template <class T>
T mulhi(T, T);
template <class T>
T popcount(T);
template <class T>
T clz(T);
template <class T>
T ctz(T);
template <class T>
T rotate(T, Plain<T>);
template <class T>
T reverse_bits(T);
template <class T>
T extract_bits(T, uint, uint);

struct bfloat {
  ushort bits;
  bfloat() = default;
  template <class T>
  bfloat(T);
  operator float() const;
  operator float() const __constant;
};

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_texture, mem_threadgroup_imageblock };
enum memory_order { memory_order_relaxed };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<ulong> atomic_ulong;
typedef atomic<float> atomic_float;
#define ATOMICS(SPACE)                                                                                        \
  template <class T>                                                                                          \
  T atomic_load_explicit(const volatile SPACE atomic<T>*, memory_order);                                      \
  template <class T>                                                                                          \
  void atomic_store_explicit(volatile SPACE atomic<T>*, Plain<T>, memory_order);                              \
  template <class T>                                                                                          \
  T atomic_exchange_explicit(volatile SPACE atomic<T>*, Plain<T>, memory_order);                              \
  template <class T>                                                                                          \
  bool atomic_compare_exchange_weak_explicit(volatile SPACE atomic<T>*, __private T*, Plain<T>, memory_order, \
                                             memory_order);                                                   \
  FETCH(SPACE, add)                                                                                           \
  FETCH(SPACE, sub) FETCH(SPACE, and) FETCH(SPACE, or) FETCH(SPACE, xor) FETCH(SPACE, min) FETCH(SPACE, max)
#define FETCH(SPACE, NAME) \
  template <class T>       \
  T atomic_fetch_##NAME##_explicit(volatile SPACE atomic<T>*, Plain<T>, memory_order);
ATOMICS(__global)
ATOMICS(__local)

#define EXCHANGE(NAME) \
  template <class T>   \
  T simd_##NAME(T, ushort);
#define REDUCE(NAME) \
  template <class T> \
  T simd_##NAME(T);
EXCHANGE(shuffle)
EXCHANGE(shuffle_down) EXCHANGE(shuffle_up) EXCHANGE(shuffle_xor) EXCHANGE(broadcast) REDUCE(broadcast_first)
    REDUCE(sum) REDUCE(product) REDUCE(min) REDUCE(max) REDUCE(and) REDUCE(or) REDUCE(xor) bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();

}  // namespace metal

// Types are names of the language.
#define NAMES(T)              \
  using metal::T##2;          \
  using metal::T##3;          \
  using metal::T##4;          \
  using metal::packed_##T##2; \
  using metal::packed_##T##3; \
  using metal::packed_##T##4;
NAMES(char)
NAMES(uchar) NAMES(short) NAMES(ushort) NAMES(int) NAMES(uint) NAMES(long) NAMES(ulong) NAMES(half)
    NAMES(float) using metal::as_type;
using metal::bfloat;
using metal::bool2;
using metal::bool3;
using metal::bool4;
