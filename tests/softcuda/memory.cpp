// Device memory, pinned and managed host memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "machine.hpp"

namespace softcuda {

std::pair<const uintptr_t, Range>* range_at(uintptr_t address) {
  auto& ranges = machine().ranges;
  auto found = ranges.upper_bound(address);
  if (found == ranges.begin()) return nullptr;
  --found;
  return address - found->first < found->second.bytes ? &*found : nullptr;
}

bool is_accessible(uintptr_t address, size_t bytes, const Context* context) {
  while (bytes) {
    const auto* const range = range_at(address);
    if (range == nullptr || !range->second.accessible) return false;
    const int owner = range->second.device;
    if (context && owner >= 0 && owner != context->device && range->second.kind != Range::Mapped &&
        range->second.kind != Range::Managed && !context->peers.count(owner)) {
      return false;
    }
    const size_t part = std::min(bytes, range->first + range->second.bytes - address);
    address += part;
    bytes -= part;
  }
  return true;
}

int new_file(const Device& device, size_t bytes) {
  const int file = memfd_create((file_title(device.gpu) + std::to_string(getpid())).c_str(), MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

namespace {

bool is_mapped(const void* address, size_t bytes) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t first = start / page * page;
  return msync(reinterpret_cast<void*>(first), start + bytes - first, MS_ASYNC) == 0;  // ENOMEM otherwise
}

size_t rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Maps zeroed memory at a multiple of the page size.
void* map_aligned(size_t bytes, int file, int protection) {
  auto* const space =
      static_cast<char*>(mmap(nullptr, bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (space == MAP_FAILED) return nullptr;
  const size_t before = (kPage - reinterpret_cast<uintptr_t>(space) % kPage) % kPage;
  char* const start = space + before;
  if (before) munmap(space, before);
  if (kPage - before) munmap(start + bytes, kPage - before);
  const int flags = MAP_FIXED | MAP_NORESERVE | (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  if (mmap(start, bytes, protection, flags, file, 0) != MAP_FAILED) return start;
  munmap(start, bytes);
  return nullptr;
}

}  // namespace

CUresult add_range(Range range, int protection, void** result) {
  const size_t mapped = rounded(range.bytes);
  void* const address = map_aligned(mapped, range.file, protection);
  if (address == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  machine().ranges.emplace(reinterpret_cast<uintptr_t>(address), range);
  *result = address;
  return CUDA_SUCCESS;
}

CUresult remove_range(uintptr_t address, Range::Kind kind, CUresult otherwise) {
  {
    const Lock lock(machine().mutex);
    const auto found = machine().ranges.find(address);
    if (found == machine().ranges.end() || found->second.kind != kind) return otherwise;
  }
  for (auto& device : machine().devices) wait_for_all(&device.context);
  const Lock lock(machine().mutex);
  const auto found = machine().ranges.find(address);
  if (found == machine().ranges.end()) return otherwise;
  const Range range = found->second;
  if (is_imported_elsewhere(range)) return CUDA_ERROR_ILLEGAL_STATE;  // a GPU's driver does not notice it
  machine().ranges.erase(found);
  if (kind == Range::Registered) return CUDA_SUCCESS;
  munmap(reinterpret_cast<void*>(address), rounded(range.bytes));
  if (range.file >= 0) close(range.file);
  if (kind == Range::Device) machine().devices[static_cast<size_t>(range.device)].used -= rounded(range.bytes);
  return CUDA_SUCCESS;
}

}  // namespace softcuda

using namespace softcuda;

namespace {

CUresult allocate(size_t bytes, int device_index, CUdeviceptr* result) {
  const Lock lock(machine().mutex);
  Device& device = machine().devices[static_cast<size_t>(device_index)];
  const size_t left = device.gpu.memory - device.used;
  if (bytes > left || rounded(bytes) > left) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = new_file(device, rounded(bytes));
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  void* address;
  if (const CUresult failed = add_range({Range::Device, bytes, device_index, file}, PROT_READ | PROT_WRITE, &address)) {
    close(file);
    return failed;
  }
  device.used += rounded(bytes);
  *result = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

CUresult pin(void** result, size_t bytes) {
  CURRENT_CONTEXT(context);
  if (result == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  return add_range({Range::Pinned, bytes, -1}, PROT_READ | PROT_WRITE, result);
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  CALL(cuMemGetInfo);
  CURRENT_CONTEXT(context);
  const Lock lock(machine().mutex);
  const Device& device = machine().devices[static_cast<size_t>(context->device)];
  *total = device.gpu.memory;
  *free = *total - device.used;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* result, size_t bytes) {
  CALL(cuMemAlloc);
  CURRENT_CONTEXT(context);
  if (result == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return allocate(bytes, context->device, result);
}

CUresult cuMemAllocAsync(CUdeviceptr* result, size_t bytes, CUstream handle) {
  CALL(cuMemAllocAsync);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (result == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return allocate(bytes, stream->context->device, result);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  CALL(cuMemFreeAsync);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  const Lock lock(machine().mutex);
  const auto found = machine().ranges.find(address);
  if (found == machine().ranges.end() || found->second.kind != Range::Device) return CUDA_ERROR_INVALID_VALUE;
  submit(stream, [address, range = found->second] {
    munmap(reinterpret_cast<void*>(address), rounded(range.bytes));
    close(range.file);
    const Lock freeing(machine().mutex);
    machine().devices[static_cast<size_t>(range.device)].used -= rounded(range.bytes);
  });
  machine().ranges.erase(found);  // the program must not use it any more
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  CALL(cuMemFree);
  if (address == 0) return CUDA_SUCCESS;
  const CUresult failed = remove_range(address, Range::Device, CUDA_ERROR_NOT_FOUND);
  return failed == CUDA_ERROR_NOT_FOUND ? remove_range(address, Range::Managed, CUDA_ERROR_INVALID_VALUE) : failed;
}

CUresult cuMemAllocManaged(CUdeviceptr* result, size_t bytes, unsigned flags) {
  CALL(cuMemAllocManaged);
  CURRENT_CONTEXT(context);
  if (result == nullptr || bytes == 0 || flags == 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  void* address;
  const CUresult failed = add_range({Range::Managed, bytes, context->device}, PROT_READ | PROT_WRITE, &address);
  if (!failed) *result = reinterpret_cast<CUdeviceptr>(address);
  return failed;
}

CUresult cuMemAllocHost(void** result, size_t bytes) {
  CALL(cuMemAllocHost);
  return pin(result, bytes);
}

CUresult cuMemHostAlloc(void** result, size_t bytes, unsigned flags) {
  CALL(cuMemHostAlloc);
  return flags > 7 ? CUDA_ERROR_INVALID_VALUE : pin(result, bytes);
}

CUresult cuMemFreeHost(void* address) {
  CALL(cuMemFreeHost);
  return remove_range(reinterpret_cast<uintptr_t>(address), Range::Pinned, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostRegister(void* address, size_t bytes, unsigned flags) {
  CALL(cuMemHostRegister);
  CURRENT_CONTEXT(context);
  if (address == nullptr || bytes == 0 || flags > 15 || !is_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  const auto start = reinterpret_cast<uintptr_t>(address);
  const auto next = machine().ranges.lower_bound(start);
  const bool overlaps = range_at(start) || (next != machine().ranges.end() && next->first < start + bytes);
  if (overlaps) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  machine().ranges.emplace(start, Range{Range::Registered, bytes, -1});
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* address) {
  CALL(cuMemHostUnregister);
  return remove_range(reinterpret_cast<uintptr_t>(address), Range::Registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* result, void* address, unsigned) {
  CALL(cuMemHostGetDevicePointer);
  const Lock lock(machine().mutex);
  if (range_at(reinterpret_cast<uintptr_t>(address)) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *result = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  CALL(cuMemGetAddressRange);
  const Lock lock(machine().mutex);
  const auto* const range = range_at(address);
  if (range == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = range->first;
  if (bytes) *bytes = range->second.bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* result, CUpointer_attribute attribute, CUdeviceptr address) {
  CALL(cuPointerGetAttribute);
  const Lock lock(machine().mutex);
  const auto* const range = range_at(address);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Range::Kind kind = range->second.kind;
  const bool is_host = kind == Range::Pinned || kind == Range::Registered;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(result) = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(result) = range->second.device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<CUdeviceptr*>(result) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<int*>(result) = kind == Range::Managed;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<bool*>(result) = kind == Range::Device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(result) = range->first;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(result) = range->second.bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
}
