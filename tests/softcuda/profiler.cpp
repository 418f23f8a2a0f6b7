// Control of profilers, of which there is none.
#include "machine.hpp"

extern "C" {

CUresult cuProfilerStart() {
  CALL(cuProfilerStart);
  return softcuda::current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuProfilerStop() {
  CALL(cuProfilerStop);
  return softcuda::current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // extern "C"
