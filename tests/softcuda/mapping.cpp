// Virtual memory management: reserved addresses, physical memory, and mappings between them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "machine.hpp"

using namespace softcuda;

namespace {

Chunk* chunk_of(CUmemGenericAllocationHandle handle) {
  auto* const chunk = reinterpret_cast<Chunk*>(handle);
  return machine().chunks.count(chunk) && !chunk->released ? chunk : nullptr;
}

void drop(Chunk* chunk) {
  if (--chunk->references) return;
  machine().devices[static_cast<size_t>(chunk->device)].used -= chunk->bytes;
  close(chunk->file);
  machine().chunks.erase(chunk);
  delete chunk;
}

bool is_reserved(CUdeviceptr address, size_t bytes) {
  const auto& reservations = machine().reservations;
  auto found = reservations.upper_bound(address);
  if (found == reservations.begin()) return false;
  --found;
  return address >= found->first && address + bytes <= found->first + found->second;
}

bool is_mapped(CUdeviceptr address, size_t bytes) {
  const auto next = machine().ranges.lower_bound(address);
  return range_at(address) || (next != machine().ranges.end() && next->first < address + bytes);
}

constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* result, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  CALL(cuMemGetAllocationGranularity);
  *result = kPage;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* result, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  CALL(cuMemAddressReserve);
  if (bytes == 0 || bytes % kPage || flags || alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
  alignment = std::max(alignment, kPage);
  void* const space = mmap(nullptr, bytes + alignment, PROT_NONE, kNoMemory, -1, 0);
  if (space == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto first = reinterpret_cast<uintptr_t>(space);
  const uintptr_t start = (first + alignment - 1) / alignment * alignment;
  if (start > first) munmap(space, start - first);
  if (first + alignment > start) munmap(reinterpret_cast<void*>(start + bytes), first + alignment - start);
  const Lock lock(machine().mutex);
  machine().reservations.emplace(start, bytes);
  *result = start;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  CALL(cuMemAddressFree);
  const Lock lock(machine().mutex);
  const auto found = machine().reservations.find(address);
  if (found == machine().reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  if (is_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), bytes);
  machine().reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* result, size_t bytes, const CUmemAllocationProp* property,
                     unsigned long long flags) {
  CALL(cuMemCreate);
  if (bytes == 0 || bytes % kPage || flags || property->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock(machine().mutex);
  if (property->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  const auto index = static_cast<size_t>(property->location.id);
  if (index >= machine().devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  Device& device = machine().devices[index];
  if (bytes > device.gpu.memory - device.used) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = new_file(device, bytes);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* const chunk = new Chunk{static_cast<int>(index), file, bytes};
  machine().chunks.insert(chunk);
  device.used += bytes;
  *result = reinterpret_cast<CUmemGenericAllocationHandle>(chunk);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CALL(cuMemRelease);
  const Lock lock(machine().mutex);
  Chunk* const chunk = chunk_of(handle);
  if (chunk == nullptr) return CUDA_ERROR_INVALID_VALUE;
  chunk->released = true;
  drop(chunk);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  CALL(cuMemMap);
  const Lock lock(machine().mutex);
  Chunk* const chunk = chunk_of(handle);
  if (chunk == nullptr || flags || offset || bytes != chunk->bytes) return CUDA_ERROR_INVALID_VALUE;
  if (address % kPage || !is_reserved(address, bytes) || is_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  void* const at = reinterpret_cast<void*>(address);
  if (mmap(at, bytes, PROT_NONE, MAP_FIXED | MAP_SHARED, chunk->file, 0) == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  ++chunk->references;
  machine().ranges.emplace(address, Range{Range::Mapped, bytes, chunk->device, -1, false, chunk});
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  CALL(cuMemSetAccess);
  const Lock lock(machine().mutex);
  if (count == 0 || access == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (CUdeviceptr at = address; at < address + bytes;) {
    const auto* const range = range_at(at);
    if (range == nullptr || range->first != at || range->second.kind != Range::Mapped) return CUDA_ERROR_INVALID_VALUE;
    at += range->second.bytes;
  }
  for (CUdeviceptr at = address; at < address + bytes;) {
    auto* const range = range_at(at);
    range->second.accessible = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    mprotect(reinterpret_cast<void*>(at), range->second.bytes,
             range->second.accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
    at += range->second.bytes;
  }
  return CUDA_SUCCESS;
}

// A range must begin and end where mappings do. Work that uses the memory must have ended: the driver does not wait.
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  CALL(cuMemUnmap);
  const Lock lock(machine().mutex);
  std::vector<CUdeviceptr> mapped;
  for (CUdeviceptr at = address; at < address + bytes;) {
    const auto* const range = range_at(at);
    if (range == nullptr || range->first != at || range->second.kind != Range::Mapped) return CUDA_ERROR_INVALID_VALUE;
    mapped.push_back(at);
    at += range->second.bytes;
    if (at > address + bytes) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const CUdeviceptr at : mapped) {
    const auto range = machine().ranges.find(at);
    mmap(reinterpret_cast<void*>(at), range->second.bytes, PROT_NONE, MAP_FIXED | kNoMemory, -1, 0);
    Chunk* const chunk = range->second.chunk;
    machine().ranges.erase(range);
    drop(chunk);
  }
  return CUDA_SUCCESS;
}
}
