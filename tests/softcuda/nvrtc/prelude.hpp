// What NVRTC predefines, for a host compiler without any headers; included before every program.
#pragma once

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cudart_builtin__
#define CUDARTAPI

using size_t = __SIZE_TYPE__;
using ptrdiff_t = __PTRDIFF_TYPE__;

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// One kernel of a module runs at a time, on one thread.
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

extern "C" {
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
double sqrt(double);
float sqrtf(float);
double fma(double, double, double);
float fmaf(float, float, float);
double fabs(double);
float fabsf(float);
double ceil(double);
float ceilf(float);
double floor(double);
float floorf(float);
double exp(double);
float expf(float);
double log(double);
float logf(float);
double sin(double);
float sinf(float);
double cos(double);
float cosf(float);
int printf(const char*, ...);
}
inline float sqrt(float x) { return sqrtf(x); }
inline float fabs(float x) { return fabsf(x); }
inline float ceil(float x) { return ceilf(x); }
inline float floor(float x) { return floorf(x); }
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }

template <class To, class From>
To softcuda_bits(From from) {
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int x) { return softcuda_bits<float>(x); }
inline int __float_as_int(float x) { return softcuda_bits<int>(x); }
inline double __longlong_as_double(long long x) { return softcuda_bits<double>(x); }
inline long long __double_as_longlong(double x) { return softcuda_bits<long long>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(1ull * a * b >> 32); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at = old + value;
  return old;
}
inline void __threadfence() {}
void __syncthreads() __attribute__((error("the software driver runs threads one after another")));

struct SoftcudaFailure {
  int code;
};
[[noreturn]] inline void __trap() { throw SoftcudaFailure{719}; }
extern "C" [[noreturn]] inline void __assertfail(const char*, const char*, unsigned, const char*, size_t) {
  throw SoftcudaFailure{710};
}
#define assert(condition) ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, "", 1))

using cudaGraphConditionalHandle = unsigned long long;
extern "C" {
void (*softcuda_set)(cudaGraphConditionalHandle, unsigned) = nullptr;  // the driver's function, which it sets
void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value) { softcuda_set(handle, value); }
}

// ---- The table of kernels, which the driver reads

struct SoftcudaKernel {
  void* address;
  int parameters;
  const size_t *sizes, *alignments;
  int (*run)(void** arguments, const unsigned* grid, const unsigned* block);
};

template <size_t... numbers>
struct SoftcudaNumbers {};

template <class... Parameters>
struct SoftcudaEntry {
  static constexpr size_t kSizes[] = {sizeof(Parameters)..., 0}, kAlignments[] = {alignof(Parameters)..., 0};

  template <void (*kernel)(Parameters...), size_t... numbers>
  static int run(SoftcudaNumbers<numbers...>, void** arguments, const unsigned* grid, const unsigned* block) {
    (void)arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    try {
      for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
          for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
            for (threadIdx.z = 0; threadIdx.z < block[2]; ++threadIdx.z)
              for (threadIdx.y = 0; threadIdx.y < block[1]; ++threadIdx.y)
                for (threadIdx.x = 0; threadIdx.x < block[0]; ++threadIdx.x)
                  kernel(*static_cast<Parameters*>(arguments[numbers])...);
    } catch (const SoftcudaFailure& failure) {
      return failure.code;
    }
    return 0;
  }

  template <void (*kernel)(Parameters...)>
  static int run_all(void** arguments, const unsigned* grid, const unsigned* block) {
    return run<kernel>(SoftcudaNumbers<__integer_pack(sizeof...(Parameters))...>{}, arguments, grid, block);
  }
};

template <class... Parameters>
SoftcudaEntry<Parameters...> softcuda_entry(void (*)(Parameters...));

#define SOFTCUDA_KERNEL(kernel)                                                               \
  {reinterpret_cast<void*>(static_cast<decltype(&kernel)>(&kernel)),                          \
   static_cast<int>(sizeof decltype(softcuda_entry(&kernel))::kSizes / sizeof(size_t)) - 1,   \
   decltype(softcuda_entry(&kernel))::kSizes, decltype(softcuda_entry(&kernel))::kAlignments, \
   decltype(softcuda_entry(&kernel))::template run_all<&kernel>}
