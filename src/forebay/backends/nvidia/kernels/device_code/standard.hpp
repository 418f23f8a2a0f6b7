// The part of the C++ standard library that the shared headers use, for NVRTC, which has none.
#pragma once

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;

#define INFINITY __int_as_float(0x7F800000)
#define EINVAL 22
#define __builtin_fma fma
#define __builtin_fmaf fmaf
#define __builtin_sqrt sqrt
#define __builtin_sqrtf sqrtf
#define __builtin_fabs fabs

namespace std {

using ::ceil;
using ::floor;
using ::memcpy;
using ::size_t;

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <class T, class U>
inline constexpr bool is_same_v = false;
template <class T>
inline constexpr bool is_same_v<T, T> = true;

template <bool chosen, class T, class U>
struct conditional {
  using type = T;
};
template <class T, class U>
struct conditional<false, T, U> {
  using type = U;
};
template <bool chosen, class T, class U>
using conditional_t = typename conditional<chosen, T, U>::type;

template <class...>
using void_t = void;

template <class T, class... Others>
inline constexpr bool is_any_of_v = (is_same_v<T, Others> || ...);
template <class T>
inline constexpr bool is_floating_point_v = is_any_of_v<T, float, double>;
template <class T>
inline constexpr bool is_integral_v = is_any_of_v<T, bool, char, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t,
                                                  long, unsigned long, int64_t, uint64_t>;
template <class T>
inline constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;

}  // namespace std

// Ends the kernel with CUDA_ERROR_ASSERT, as assert() does.
extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line, const char* function,
                                        size_t character_size) __attribute__((noreturn));
