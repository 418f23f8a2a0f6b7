// Vectors of two to four components, with the swizzles that kernels use most.
#pragma once
#pragma GCC system_header

namespace metal {

template <class T, int N>
struct vec;

// The components I... of a vector, as one value: v.zw, v.xyz.
template <class T, int N, int... I>
struct Swizzle {
  T all[N];
  operator vec<T, sizeof...(I)>() const { return vec<T, sizeof...(I)>(all[I]...); }
  Swizzle& operator=(const vec<T, sizeof...(I)>& value) {
    int from = 0;
    int unused[] = {(all[I] = value[from++], 0)...};
    (void)unused;
    return *this;
  }
  Swizzle& operator=(const Swizzle& other) { return *this = vec<T, sizeof...(I)>(other); }
};

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T all[2];
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    Swizzle<T, 2, 0, 1> xy;
    Swizzle<T, 2, 1, 0> yx;
    Swizzle<T, 2, 0, 0> xx;
    Swizzle<T, 2, 1, 1> yy;
  };
  vec() = default;
  vec(const vec& other) : x(other.x), y(other.y) {}
  explicit vec(T each) : x(each), y(each) {}
  vec(T x_, T y_) : x(x_), y(y_) {}
  template <class U>
  explicit vec(const vec<U, 2>& other) : x(T(other.x)), y(T(other.y)) {}
  vec& operator=(const vec& o) { return x = o.x, y = o.y, *this; }
  T& operator[](int i) { return all[i]; }
  const T& operator[](int i) const { return all[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T all[3];
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    Swizzle<T, 3, 0, 1> xy;
    Swizzle<T, 3, 1, 2> yz;
    Swizzle<T, 3, 0, 2> xz;
    Swizzle<T, 3, 1, 0> yx;
    Swizzle<T, 3, 0, 1, 2> xyz;
    Swizzle<T, 3, 2, 1, 0> zyx;
  };
  vec() = default;
  vec(const vec& other) : x(other.x), y(other.y), z(other.z) {}
  explicit vec(T each) : x(each), y(each), z(each) {}
  vec(T x_, T y_, T z_) : x(x_), y(y_), z(z_) {}
  vec(const vec<T, 2>& xy_, T z_) : x(xy_.x), y(xy_.y), z(z_) {}
  template <class U>
  explicit vec(const vec<U, 3>& other) : x(T(other.x)), y(T(other.y)), z(T(other.z)) {}
  vec& operator=(const vec& o) { return x = o.x, y = o.y, z = o.z, *this; }
  T& operator[](int i) { return all[i]; }
  const T& operator[](int i) const { return all[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T all[4];
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    Swizzle<T, 4, 0, 1> xy, lo;
    Swizzle<T, 4, 2, 3> zw, hi;
    Swizzle<T, 4, 0, 2> xz, even;
    Swizzle<T, 4, 1, 3> yw, odd;
    Swizzle<T, 4, 1, 2> yz;
    Swizzle<T, 4, 0, 3> xw;
    Swizzle<T, 4, 0, 1, 2> xyz;
    Swizzle<T, 4, 1, 2, 3> yzw;
    Swizzle<T, 4, 0, 1, 2, 3> xyzw;
    Swizzle<T, 4, 3, 2, 1, 0> wzyx;
  };
  vec() = default;
  vec(const vec& other) : x(other.x), y(other.y), z(other.z), w(other.w) {}
  explicit vec(T each) : x(each), y(each), z(each), w(each) {}
  vec(T x_, T y_, T z_, T w_) : x(x_), y(y_), z(z_), w(w_) {}
  vec(const vec<T, 2>& a_, const vec<T, 2>& b_) : x(a_.x), y(a_.y), z(b_.x), w(b_.y) {}
  vec(const vec<T, 2>& a_, T z_, T w_) : x(a_.x), y(a_.y), z(z_), w(w_) {}
  vec(const vec<T, 3>& a_, T w_) : x(a_.x), y(a_.y), z(a_.z), w(w_) {}
  template <class U>
  explicit vec(const vec<U, 4>& other) : x(T(other.x)), y(T(other.y)), z(T(other.z)), w(T(other.w)) {}
  vec& operator=(const vec& o) { return x = o.x, y = o.y, z = o.z, w = o.w, *this; }
  T& operator[](int i) { return all[i]; }
  const T& operator[](int i) const { return all[i]; }
};

template <class T>
struct Same {
  using Type = T;
};
template <class T>
using Plain = typename Same<T>::Type;  // an argument that takes no part in deduction

#define SOFTMETAL_OPERATOR(OP, RESULT)                                        \
  template <class T, int N>                                                   \
  inline vec<RESULT, N> operator OP(const vec<T, N>& a, const vec<T, N>& b) { \
    vec<RESULT, N> out;                                                       \
    for (int i = 0; i < N; i++) out[i] = RESULT(a[i] OP b[i]);                \
    return out;                                                               \
  }                                                                           \
  template <class T, int N>                                                   \
  inline vec<RESULT, N> operator OP(const vec<T, N>& a, Plain<T> b) {         \
    return a OP vec<T, N>(b);                                                 \
  }                                                                           \
  template <class T, int N>                                                   \
  inline vec<RESULT, N> operator OP(Plain<T> a, const vec<T, N>& b) {         \
    return vec<T, N>(a) OP b;                                                 \
  }
#define SOFTMETAL_ASSIGNED(OP)                                            \
  SOFTMETAL_OPERATOR(OP, T)                                               \
  template <class T, int N>                                               \
  inline vec<T, N>& operator OP## = (vec<T, N> & a, const vec<T, N>& b) { \
    return a = a OP b;                                                    \
  }                                                                       \
  template <class T, int N>                                               \
  inline vec<T, N>& operator OP## = (vec<T, N> & a, Plain<T> b) {         \
    return a = a OP b;                                                    \
  }
SOFTMETAL_ASSIGNED(+)
SOFTMETAL_ASSIGNED(-)
SOFTMETAL_ASSIGNED(*)
SOFTMETAL_ASSIGNED(/)
SOFTMETAL_ASSIGNED(%)
SOFTMETAL_ASSIGNED(&)
SOFTMETAL_ASSIGNED(|)
SOFTMETAL_ASSIGNED(^)
SOFTMETAL_ASSIGNED(<<)
SOFTMETAL_ASSIGNED(>>)
SOFTMETAL_OPERATOR(==, bool)
SOFTMETAL_OPERATOR(!=, bool)
SOFTMETAL_OPERATOR(<, bool)
SOFTMETAL_OPERATOR(>, bool)
SOFTMETAL_OPERATOR(<=, bool)
SOFTMETAL_OPERATOR(>=, bool)
SOFTMETAL_OPERATOR(&&, bool)
SOFTMETAL_OPERATOR(||, bool)

#define SOFTMETAL_PREFIX(OP)                         \
  template <class T, int N>                          \
  inline vec<T, N> operator OP(const vec<T, N>& a) { \
    vec<T, N> out;                                   \
    for (int i = 0; i < N; i++) out[i] = T(OP a[i]); \
    return out;                                      \
  }
SOFTMETAL_PREFIX(-)
SOFTMETAL_PREFIX(~)
SOFTMETAL_PREFIX(!)

// Vectors without padding.
template <class T, int N>
struct packed_vec {
  T all[N];
  packed_vec() = default;
  packed_vec(const vec<T, N>& from) {
    for (int i = 0; i < N; i++) all[i] = from[i];
  }
  operator vec<T, N>() const {
    vec<T, N> out;
    for (int i = 0; i < N; i++) out[i] = all[i];
    return out;
  }
  T& operator[](int i) { return all[i]; }
  const T& operator[](int i) const { return all[i]; }
};

}  // namespace metal

#define SOFTMETAL_NAMES(TYPE)                          \
  using TYPE##2 = metal::vec<TYPE, 2>;                 \
  using TYPE##3 = metal::vec<TYPE, 3>;                 \
  using TYPE##4 = metal::vec<TYPE, 4>;                 \
  using packed_##TYPE##2 = metal::packed_vec<TYPE, 2>; \
  using packed_##TYPE##3 = metal::packed_vec<TYPE, 3>; \
  using packed_##TYPE##4 = metal::packed_vec<TYPE, 4>;
SOFTMETAL_NAMES(bool)
SOFTMETAL_NAMES(char)
SOFTMETAL_NAMES(uchar)
SOFTMETAL_NAMES(short)
SOFTMETAL_NAMES(ushort)
SOFTMETAL_NAMES(int)
SOFTMETAL_NAMES(uint)
SOFTMETAL_NAMES(long)
SOFTMETAL_NAMES(ulong)
SOFTMETAL_NAMES(half)
SOFTMETAL_NAMES(bfloat)
SOFTMETAL_NAMES(float)
