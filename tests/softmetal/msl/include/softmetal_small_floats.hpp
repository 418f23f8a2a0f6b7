// half and bfloat: stored in 16 bits, computed as float and rounded to the nearest, ties to even, after each operation.
#pragma once
#pragma GCC system_header

template <class To, class From>
inline To softmetal_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of equal size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

inline ushort softmetal_to_half(float value) {
  uint bits = softmetal_bits<uint>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return ushort(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return ushort(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal: the sum has the rounded bits at its end
    float shifted = softmetal_bits<float>(magnitude) + 0.5f;
    return ushort(sign | (softmetal_bits<uint>(shifted) - 0x3f000000));
  }
  uint odd = magnitude >> 13 & 1;
  return ushort(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

inline float softmetal_from_half(ushort half) {
  uint sign = uint(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return softmetal_bits<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x400) return softmetal_bits<float>(sign | ((magnitude << 13) + 0x38000000));
  float value = float(magnitude) * 0x1p-24f;
  return sign ? -value : value;
}

inline ushort softmetal_to_bfloat(float value) {
  uint bits = softmetal_bits<uint>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return ushort(bits >> 16 | 0x40);
  return ushort((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
struct softmetal_integer {};
#define SOFTMETAL_INTEGER(T)    \
  template <>                   \
  struct softmetal_integer<T> { \
    using type = T;             \
  };
SOFTMETAL_INTEGER(bool)
SOFTMETAL_INTEGER(char)
SOFTMETAL_INTEGER(int8_t)
SOFTMETAL_INTEGER(uchar)
SOFTMETAL_INTEGER(short)
SOFTMETAL_INTEGER(ushort)
SOFTMETAL_INTEGER(int)
SOFTMETAL_INTEGER(uint)
SOFTMETAL_INTEGER(long)
SOFTMETAL_INTEGER(ulong)

// With a float the result is float; with an integer it has the small type.
#define SOFTMETAL_SMALL_OPERATOR(TYPE, OP)                                       \
  inline TYPE operator OP(TYPE a, TYPE b) { return TYPE(float(a) OP float(b)); } \
  inline float operator OP(TYPE a, float b) { return float(a) OP b; }            \
  inline float operator OP(float a, TYPE b) { return a OP float(b); }            \
  template <class T, class = typename softmetal_integer<T>::type>                \
  inline TYPE operator OP(TYPE a, T b) {                                         \
    return TYPE(float(a) OP float(b));                                           \
  }                                                                              \
  template <class T, class = typename softmetal_integer<T>::type>                \
  inline TYPE operator OP(T a, TYPE b) {                                         \
    return TYPE(float(a) OP float(b));                                           \
  }

#define SOFTMETAL_SMALL_FLOAT(TYPE, TO, FROM)                                          \
  struct TYPE {                                                                        \
    ushort bits;                                                                       \
    TYPE() = default;                                                                  \
    constexpr TYPE(const TYPE&) = default;                                             \
    template <class T, class = decltype(float(T()))>                                   \
    TYPE(T value) : bits(TO(float(value))) {}                                          \
    TYPE& operator=(const TYPE&) = default;                                            \
    operator float() const { return FROM; }                                            \
    TYPE operator-() const { return TYPE(-float(*this)); }                             \
    TYPE& operator+=(TYPE other) { return *this = TYPE(float(*this) + float(other)); } \
    TYPE& operator-=(TYPE other) { return *this = TYPE(float(*this) - float(other)); } \
    TYPE& operator*=(TYPE other) { return *this = TYPE(float(*this) * float(other)); } \
    TYPE& operator/=(TYPE other) { return *this = TYPE(float(*this) / float(other)); } \
  };                                                                                   \
  SOFTMETAL_SMALL_OPERATOR(TYPE, +)                                                    \
  SOFTMETAL_SMALL_OPERATOR(TYPE, -)                                                    \
  SOFTMETAL_SMALL_OPERATOR(TYPE, *)                                                    \
  SOFTMETAL_SMALL_OPERATOR(TYPE, /)

SOFTMETAL_SMALL_FLOAT(half, softmetal_to_half, softmetal_from_half(bits))
SOFTMETAL_SMALL_FLOAT(bfloat, softmetal_to_bfloat, softmetal_bits<float>(uint(bits) << 16))
