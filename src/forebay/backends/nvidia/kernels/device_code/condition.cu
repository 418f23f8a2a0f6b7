// Kernel that sets the condition of a conditional node of a graph from a byte.
extern "C" __device__ __cudart_builtin__ void CUDARTAPI cudaGraphSetConditional(cudaGraphConditionalHandle handle,
                                                                                unsigned int value);

extern "C" __global__ void set_condition(cudaGraphConditionalHandle handle, const unsigned char* byte) {
  cudaGraphSetConditional(handle, *byte != 0);
}
