// Kernel of strided copies from elements of type SOURCE to those of type TO, for up to AXES axes. The conversions are
// those of the CPU device.
#include "standard.hpp"

#include "queue/convert.hpp"
#include "queue/packed_copy.hpp"

namespace forebay::convert {

struct Word16 {
  uint64_t low, high;
};
struct Bytes;  // elements of any size, which are not converted

// As packed by Python.
struct CopyJob {
  StridedCopy head;
  uint64_t count;    // of elements
  uint64_t aligned;  // 0 or 1: whether all elements are aligned to their size, or to 8 bytes
  char value[64];    // of a fill
  CopyAxis axes[AXES];
};

template <class T>
__device__ T load(const char* at, bool aligned) {
  if (aligned) return *reinterpret_cast<const T*>(at);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
__device__ void store(char* at, T value, bool aligned) {
  if (aligned) {
    *reinterpret_cast<T*>(at) = value;
  } else {
    std::memcpy(at, &value, sizeof value);
  }
}

template <class To, class Source>
__device__ void copy_element(char* to, const char* source, const CopyJob& job) {
  if constexpr (std::is_same_v<To, Bytes>) {
    for (uint64_t at = 0; at < job.head.to_size; ++at) to[at] = source[at];
  } else {
    store<To>(to, element<To>(load<Source>(source, job.aligned)), job.aligned);
  }
}

template <class Index>
__device__ void copy_elements(const CopyJob& job) {
  char* const to = reinterpret_cast<char*>(job.head.to);
  const char* const source = job.head.flags & kFill ? job.value : reinterpret_cast<const char*>(job.head.source);
  const Index count = static_cast<Index>(job.count), step = gridDim.x * blockDim.x;
  for (Index number = blockIdx.x * blockDim.x + threadIdx.x; number < count; number += step) {
    int64_t to_offset = 0, source_offset = 0;
    Index rest = number;
    if (AXES > 1) {
      for (int at = job.head.axes - 1; at > 0; --at) {
        const CopyAxis& axis = job.axes[at];
        const Index length = static_cast<Index>(axis.length), position = rest % length;
        rest /= length;
        to_offset += static_cast<int64_t>(position) * axis.to_step;
        source_offset += static_cast<int64_t>(position) * axis.source_step;
      }
    }
    to_offset += static_cast<int64_t>(rest) * job.axes[0].to_step;
    source_offset += static_cast<int64_t>(rest) * job.axes[0].source_step;
    copy_element<TO, SOURCE>(to + to_offset, source + source_offset, job);
  }
}

extern "C" __global__ void __launch_bounds__(256) copy_strided(const __grid_constant__ CopyJob job) {
  if (job.count >> 31) {
    copy_elements<uint64_t>(job);
  } else {
    copy_elements<uint32_t>(job);
  }
}

}  // namespace forebay::convert
