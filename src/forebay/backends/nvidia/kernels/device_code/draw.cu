// Kernel of random fills of one DISTRIBUTION and type of ELEMENT, for destinations of up to AXES axes; 0: contiguous
// ones. Each thread computes what one thread of PyTorch's kernels computes, with the code of the CPU device.
#include "random/draw.hpp"
#include "random/philox.hpp"
#include "random/poisson.hpp"
#include "random/stored_types.hpp"
#include "standard.hpp"

#define LEVEL device
#include "random/draw_kernel.hpp"

namespace forebay {

// Seed and offset of a source of random numbers: a captured draw finds them in memory when it runs.
struct Source {
  uint64_t seed, offset;
};

// As packed by Python.
struct DrawJob {
  Draw draw;
  uint64_t source;  // address of a Source, or 0. Else the draw's offset is relative to the source's
  Axis axes[AXES > 0 ? AXES : 1];
};

template <class Stored>
__device__ void run_job(const DrawJob& job) {
  Draw draw = job.draw;
  if (AXES == 0) draw.axes = 0;  // known to the compiler
  if (job.source) {
    const Source source = *reinterpret_cast<const Source*>(job.source);
    draw.seed = source.seed;
    draw.offset += source.offset;
  }
  const device::Part part{uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, uint64_t{gridDim.x} * blockDim.x};
  const int failed = device::run_one<Stored, Distribution::DISTRIBUTION>(draw, job.axes, part);
  if (failed) __assertfail("0 <= p && p <= 1, or rate >= 0", "draw.cu", __LINE__, "draw", 1);
}

extern "C" __global__ void __launch_bounds__(256) draw_numbers(const __grid_constant__ DrawJob job) {
  run_job<ELEMENT>(job);
}

}  // namespace forebay
