// Threads of a grid, atomics, barriers and exchanges inside SIMD-groups, and how a kernel is called.
#pragma once
#pragma GCC system_header

struct softmetal_thread {  // one thread of a dispatch; runtime.cpp has the same
  uint position[3], local[3], group[3], groups[3], grid[3], size[3], full_size[3];
  uint index, lane, simdgroup, simdgroups, full_simdgroups, width;
  void* const* buffers;
  void* const* threadgroup;
};

extern "C" void softmetal_barrier(int scope);  // 0: threadgroup, 1: SIMD-group
extern "C" const softmetal_thread* softmetal_self();
extern "C" void* softmetal_exchange(int lane);  // 64 bytes that a lane of this SIMD-group has published
extern "C" unsigned softmetal_active_lanes();

namespace metal {

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_texture, mem_threadgroup_imageblock };
enum memory_order { memory_order_relaxed };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
inline mem_flags operator|(mem_flags a, mem_flags) { return a; }
inline void threadgroup_barrier(mem_flags) { softmetal_barrier(0); }
inline void simdgroup_barrier(mem_flags) { softmetal_barrier(1); }
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}

template <class T>
struct atomic {
  T value;
};

template <class T>
inline T atomic_load_explicit(const volatile atomic<T>* a, memory_order) {
  T out;
  __atomic_load(const_cast<T*>(&a->value), &out, __ATOMIC_RELAXED);
  return out;
}
template <class T>
inline void atomic_store_explicit(volatile atomic<T>* a, Plain<T> value, memory_order) {
  __atomic_store(const_cast<T*>(&a->value), &value, __ATOMIC_RELAXED);
}
template <class T>
inline T atomic_exchange_explicit(volatile atomic<T>* a, Plain<T> value, memory_order) {
  T out;
  __atomic_exchange(const_cast<T*>(&a->value), &value, &out, __ATOMIC_RELAXED);
  return out;
}
template <class T>
inline bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* a, T* expected, Plain<T> value, memory_order,
                                                  memory_order) {
  return __atomic_compare_exchange(const_cast<T*>(&a->value), expected, &value, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED);
}
#define SOFTMETAL_ATOMIC(NAME, EXPRESSION)                                                         \
  template <class T>                                                                               \
  inline T atomic_fetch_##NAME##_explicit(volatile atomic<T>* a, Plain<T> x, memory_order order) { \
    T old = atomic_load_explicit(a, order);                                                        \
    while (!atomic_compare_exchange_weak_explicit(a, &old, T(EXPRESSION), order, order)) {         \
    }                                                                                              \
    return old;                                                                                    \
  }
SOFTMETAL_ATOMIC(add, old + x)
SOFTMETAL_ATOMIC(sub, old - x)
SOFTMETAL_ATOMIC(and, old& x)
SOFTMETAL_ATOMIC(or, old | x)
SOFTMETAL_ATOMIC(xor, old ^ x)
SOFTMETAL_ATOMIC(min, x < old ? x : old)
SOFTMETAL_ATOMIC(max, old < x ? x : old)
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;
using atomic_bool = atomic<bool>;

// The value that another lane has; all lanes call it.
template <class T>
inline T softmetal_of_lane(T value, uint lane) {
  static_assert(sizeof(T) <= 64, "the value is too large");
  __builtin_memcpy(softmetal_exchange(-1), &value, sizeof value);
  softmetal_barrier(1);
  T out = value;
  if (lane < softmetal_active_lanes()) __builtin_memcpy(&out, softmetal_exchange(int(lane)), sizeof out);
  softmetal_barrier(1);
  return out;
}
template <class T>
inline T simd_shuffle(T value, ushort lane) {
  return softmetal_of_lane(value, lane);
}
template <class T>
inline T simd_broadcast(T value, ushort lane) {
  return softmetal_of_lane(value, lane);
}
template <class T>
inline T simd_broadcast_first(T value) {
  return softmetal_of_lane(value, 0);
}
template <class T>
inline T simd_shuffle_down(T value, ushort delta) {
  return softmetal_of_lane(value, softmetal_self()->lane + delta);
}
template <class T>
inline T simd_shuffle_up(T value, ushort delta) {
  uint lane = softmetal_self()->lane;
  return softmetal_of_lane(value, lane < delta ? lane : lane - delta);
}
template <class T>
inline T simd_shuffle_xor(T value, ushort mask) {
  return softmetal_of_lane(value, softmetal_self()->lane ^ mask);
}
#define SOFTMETAL_REDUCE(NAME, EXPRESSION)                          \
  template <class T>                                                \
  inline T simd_##NAME(T value) {                                   \
    __builtin_memcpy(softmetal_exchange(-1), &value, sizeof value); \
    softmetal_barrier(1);                                           \
    T old, x;                                                       \
    __builtin_memcpy(&old, softmetal_exchange(0), sizeof old);      \
    for (uint i = 1; i < softmetal_active_lanes(); i++) {           \
      __builtin_memcpy(&x, softmetal_exchange(int(i)), sizeof x);   \
      old = T(EXPRESSION);                                          \
    }                                                               \
    softmetal_barrier(1);                                           \
    return old;                                                     \
  }
SOFTMETAL_REDUCE(sum, old + x)
SOFTMETAL_REDUCE(product, old* x)
SOFTMETAL_REDUCE(min, x < old ? x : old)
SOFTMETAL_REDUCE(max, old < x ? x : old)
SOFTMETAL_REDUCE(and, old& x)
SOFTMETAL_REDUCE(or, old | x)
SOFTMETAL_REDUCE(xor, old ^ x)
inline bool simd_any(bool value) { return simd_or(uint(value)) != 0; }
inline bool simd_all(bool value) { return simd_and(uint(value)) != 0; }
inline bool simd_is_first() { return softmetal_self()->lane == 0; }

}  // namespace metal

namespace softmetal {

struct Shape {
  unsigned long size, alignment;  // of what an argument refers to
  int constant;
};

template <class T>
struct NoConst {
  using Type = T;
  static constexpr int constant = 0;
};
template <class T>
struct NoConst<const T> {
  using Type = T;
  static constexpr int constant = 1;
};

template <class A>
struct Referred;
template <class T>
struct Referred<T*> {
  using Type = T;
  static T* get(void* address) { return static_cast<T*>(address); }
};
template <class T>
struct Referred<T&> {
  using Type = T;
  static T& get(void* address) { return *static_cast<T*>(address); }
};
template <class T>
struct SizeOf {
  static constexpr unsigned long size = sizeof(T), alignment = alignof(T);
};
template <>
struct SizeOf<void> {
  static constexpr unsigned long size = 1, alignment = 1;
};

template <class T>
inline Shape shape_of() {
  using Plain = typename NoConst<T>::Type;
  return {SizeOf<Plain>::size, SizeOf<Plain>::alignment, NoConst<T>::constant};
}

template <int I>
struct Buffer {
  template <class A>
  static A get(const softmetal_thread& t) {
    return Referred<A>::get(t.buffers[I]);
  }
  template <class A>
  static Shape shape() {
    return shape_of<typename Referred<A>::Type>();
  }
};

template <int I>
struct Threadgroup {
  template <class A>
  static A get(const softmetal_thread& t) {
    return Referred<A>::get(t.threadgroup[I]);
  }
  template <class A>
  static Shape shape() {
    return shape_of<typename Referred<A>::Type>();
  }
};

template <class A>
struct FromTriple {
  static A get(const uint* from) { return A(from[0]); }
};
template <class T>
struct FromTriple<metal::vec<T, 2>> {
  static metal::vec<T, 2> get(const uint* from) { return {T(from[0]), T(from[1])}; }
};
template <class T>
struct FromTriple<metal::vec<T, 3>> {
  static metal::vec<T, 3> get(const uint* from) { return {T(from[0]), T(from[1]), T(from[2])}; }
};
template <class A>
inline A builtin_value(const uint (&value)[3]) {
  return FromTriple<A>::get(value);
}
template <class A>
inline A builtin_value(const uint& value) {
  return A(value);
}

template <class M, M softmetal_thread::* Member>
struct BuiltinOf {
  template <class A>
  static A get(const softmetal_thread& t) {
    return builtin_value<A>(t.*Member);
  }
  template <class A>
  static Shape shape() {
    return {0, 0, 1};
  }
};

template <class F, F f, class... Slots>
struct Kernel;
template <class... A, void (*f)(A...), class... Slots>
struct Kernel<void (*)(A...), f, Slots...> {
  static void run(const softmetal_thread& t) { f(Slots::template get<A>(t)...); }
  static void describe(Shape* out) {
    Shape shapes[] = {Slots::template shape<A>()..., Shape()};
    for (unsigned i = 0; i < sizeof...(A); i++) out[i] = shapes[i];
  }
};

}  // namespace softmetal

#define SOFTMETAL_BUILTIN(NAME) softmetal::BuiltinOf<decltype(softmetal_thread::NAME), &softmetal_thread::NAME>
