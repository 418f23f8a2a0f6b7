// Modules and kernels: shared objects of the stand-in for NVRTC (nvrtc/), whose kernels run on the thread of a stream.
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "machine.hpp"

using namespace softcuda;

namespace {

// As in nvrtc/prelude.hpp.
struct Entry {
  void* address;
  int parameters;
  const size_t *sizes, *alignments;
  int (*run)(void** arguments, const unsigned* grid, const unsigned* block);
};

struct Module;

struct Kernel {
  Module* module;
  const Entry* entry;
  std::string name;
  std::vector<size_t> offsets;  // of the parameters, and the size of all
  unsigned shared = 48u << 10;  // bytes of dynamic shared memory that it may have
};

struct Module {
  Context* context;  // null for a library, which belongs to none
  void* library;
  std::mutex running;  // one kernel at a time, as the indices of threads are variables of the module
  std::vector<std::unique_ptr<Kernel>> kernels;

  ~Module() { dlclose(library); }
};

// A stream's work keeps its module loaded.
std::vector<std::shared_ptr<Module>>& modules() {
  static auto* const all = new std::vector<std::shared_ptr<Module>>;
  return *all;
}

std::shared_ptr<Module> module_of(const void* handle) {
  const Lock lock(machine().mutex);
  for (const auto& each : modules()) {
    if (each.get() == handle) return each;
  }
  return nullptr;
}

Kernel* kernel_of(const void* handle) {
  const Lock lock(machine().mutex);
  for (const auto& module : modules()) {
    for (const auto& each : module->kernels) {
      if (each.get() == handle) return each.get();
    }
  }
  return nullptr;
}

#define KERNEL(name, handle)              \
  Kernel* const name = kernel_of(handle); \
  if (!name) return CUDA_ERROR_INVALID_HANDLE

CUresult load(const void* image, Context* context, std::shared_ptr<Module>* result) {
  if (!image || !result) return CUDA_ERROR_INVALID_VALUE;
  Elf64_Ehdr head;
  std::memcpy(&head, image, sizeof head);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_INVALID_IMAGE;
  const size_t bytes = head.e_shoff + size_t{head.e_shnum} * head.e_shentsize;
  char path[] = "/tmp/softcuda-module-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool written = write(file, image, bytes) == static_cast<ssize_t>(bytes);
  close(file);
  void* const library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  if (!library) return CUDA_ERROR_INVALID_IMAGE;
  auto module = std::make_shared<Module>();
  module->context = context;
  module->library = library;
  if (void* const set = dlsym(library, "softcuda_set"))
    *static_cast<void**>(set) = reinterpret_cast<void*>(softcuda_set_conditional);
  const auto* entry = static_cast<const Entry*>(dlsym(library, "softcuda_kernels"));
  const auto* architecture = static_cast<const int*>(dlsym(library, "softcuda_architecture"));
  if (!entry || !architecture) return CUDA_ERROR_INVALID_IMAGE;
  if (*architecture / 10 != machine().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR])
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (; entry->address; ++entry) {
    Dl_info found;
    if (!dladdr(entry->address, &found) || !found.dli_sname) return CUDA_ERROR_INVALID_IMAGE;
    auto kernel = std::make_unique<Kernel>();
    kernel->module = module.get();
    kernel->entry = entry;
    kernel->name = found.dli_sname;
    kernel->offsets = {0};
    for (int at = 0; at < entry->parameters; ++at) {
      size_t& offset = kernel->offsets.back();
      offset = (offset + entry->alignments[at] - 1) / entry->alignments[at] * entry->alignments[at];
      kernel->offsets.push_back(kernel->offsets.back() + entry->sizes[at]);
    }
    module->kernels.push_back(std::move(kernel));
  }
  const Lock lock(machine().mutex);
  modules().push_back(module);
  *result = std::move(module);
  return CUDA_SUCCESS;
}

CUresult unload(const void* handle, bool library) {
  const Lock lock(machine().mutex);
  for (auto each = modules().begin(); each != modules().end(); ++each) {
    if (each->get() != handle || library != !(*each)->context) continue;
    modules().erase(each);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult find(void* handle, const char* name, void** result) {
  if (!result || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  const auto module = module_of(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& each : module->kernels) {
    if (each->name == name) return *result = each.get(), CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

// Copies the arguments to one buffer. Returns false if they are not given, or in both ways.
bool copy_arguments(const Kernel& kernel, void** separate, void** packed, std::vector<char>* buffer) {
  const Entry& entry = *kernel.entry;
  buffer->resize(kernel.offsets.back());
  if (packed) {
    const void* from = nullptr;
    size_t bytes = 0;
    for (; *packed != CU_LAUNCH_PARAM_END; packed += 2) {
      if (*packed == CU_LAUNCH_PARAM_BUFFER_POINTER) from = packed[1];
      if (*packed == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<size_t*>(packed[1]);
    }
    if (separate || !from || bytes != buffer->size()) return false;
    std::memcpy(buffer->data(), from, bytes);
    return true;
  }
  if (entry.parameters && !separate) return false;
  for (int at = 0; at < entry.parameters; ++at) {
    if (!separate[at]) return false;
    std::memcpy(buffer->data() + kernel.offsets[static_cast<size_t>(at) + 1] - entry.sizes[at], separate[at],
                entry.sizes[at]);
  }
  return true;
}

CUresult launch(CUfunction function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
                CUstream on, void** separate, void** packed) {
  CURRENT_CONTEXT(context);
  STREAM(stream, on);
  KERNEL(kernel, function);
  if (kernel->module->context && kernel->module->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  const unsigned grid_limits[] = {2147483647, 65535, 65535}, block_limits[] = {1024, 1024, 64};
  for (int at = 0; at < 3; ++at) {
    if (!grid[at] || grid[at] > grid_limits[at] || !block[at] || block[at] > block_limits[at]) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (uint64_t{block[0]} * block[1] * block[2] > 1024 || shared > kernel->shared) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> buffer;
  if (!copy_arguments(*kernel, separate, packed, &buffer)) return CUDA_ERROR_INVALID_VALUE;
  const auto work = [module = module_of(kernel->module), kernel, buffer, grid = std::vector(grid, grid + 3),
                     block = std::vector(block, block + 3)] {
    if (machine().sticky != CUDA_SUCCESS) return;
    std::vector<char> own = buffer;  // a kernel may change its parameters
    std::vector<void*> arguments;
    for (int at = 0; at < kernel->entry->parameters; ++at) {
      arguments.push_back(own.data() + kernel->offsets[static_cast<size_t>(at) + 1] - kernel->entry->sizes[at]);
    }
    const std::lock_guard<std::mutex> lock(module->running);
    if (const int code = kernel->entry->run(arguments.data(), grid.data(), block.data())) {
      machine().sticky = static_cast<CUresult>(code);
    }
  };
  return submit_or_capture(stream, node_params(CU_GRAPH_NODE_TYPE_KERNEL), work);
}

}  // namespace

extern "C" {

CUresult cuModuleLoadDataEx(CUmodule* result, const void* image, unsigned count, CUjit_option*, void**) {
  CALL(cuModuleLoadDataEx);
  CURRENT_CONTEXT(context);
  if (!result || count) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module;
  if (const CUresult failed = load(image, context, &module)) return failed;
  *result = reinterpret_cast<CUmodule>(module.get());
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* result, const void* image) {
  CALL(cuModuleLoadData);
  CURRENT_CONTEXT(context);
  if (!result) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module;
  if (const CUresult failed = load(image, context, &module)) return failed;
  *result = reinterpret_cast<CUmodule>(module.get());
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle) {
  CALL(cuModuleUnload);
  CURRENT_CONTEXT(context);
  return unload(handle, false);
}

CUresult cuModuleGetFunction(CUfunction* result, CUmodule module, const char* name) {
  CALL(cuModuleGetFunction);
  CURRENT_CONTEXT(context);
  return find(module, name, reinterpret_cast<void**>(result));
}

CUresult cuLibraryLoadData(CUlibrary* result, const void* image, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  CALL(cuLibraryLoadData);
  if (!result) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module;
  if (const CUresult failed = load(image, nullptr, &module)) return failed;
  *result = reinterpret_cast<CUlibrary>(module.get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary handle) {
  CALL(cuLibraryUnload);
  return unload(handle, true);
}

CUresult cuLibraryGetKernel(CUkernel* result, CUlibrary library, const char* name) {
  CALL(cuLibraryGetKernel);
  return find(library, name, reinterpret_cast<void**>(result));
}

CUresult cuKernelGetFunction(CUfunction* result, CUkernel handle) {
  CALL(cuKernelGetFunction);
  CURRENT_CONTEXT(context);
  KERNEL(kernel, handle);
  *result = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  CALL(cuFuncGetAttribute);
  KERNEL(kernel, handle);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 90;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  CALL(cuFuncSetAttribute);
  KERNEL(kernel, handle);
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  if (value < 0 || value > 96 << 10) return CUDA_ERROR_INVALID_VALUE;
  kernel->shared = static_cast<unsigned>(value);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  CALL(cuFuncGetParamInfo);
  KERNEL(kernel, handle);
  if (!offset || index >= static_cast<size_t>(kernel->entry->parameters)) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->offsets[index + 1] - kernel->entry->sizes[index];
  if (size) *size = kernel->entry->sizes[index];
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* result, CUfunction handle, int block, size_t shared) {
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  KERNEL(kernel, handle);
  if (!result || block < 1 || block > 1024 || shared > kernel->shared) return CUDA_ERROR_INVALID_VALUE;
  *result = std::min(2048 / block, 32);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** arguments,
                        void** packed) {
  CALL(cuLaunchKernel);
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, arguments, packed);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** packed) {
  CALL(cuLaunchKernelEx);
  if (!config || config->numAttrs) return CUDA_ERROR_INVALID_VALUE;
  return launch(function, {config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes, config->hStream,
                arguments, packed);
}

// The number of modules and libraries that are loaded.
int64_t softcuda_live_modules() {
  const Lock lock(machine().mutex);
  return static_cast<int64_t>(modules().size());
}
}
