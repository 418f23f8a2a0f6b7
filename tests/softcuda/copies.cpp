// Copies and fills.
#include <algorithm>
#include <cstring>
#include <vector>

#include "machine.hpp"

using namespace softcuda;

namespace {

// Where a range of a copy is: memory of a device, host memory that the driver knows, or other host memory.
enum class Place { Device, Host, Pageable, Invalid };
Place place_of(uintptr_t address, size_t bytes) {
  const Lock lock(machine().mutex);
  const auto* const range = range_at(address);
  if (range == nullptr) return Place::Pageable;
  if (!is_accessible(address, bytes, nullptr)) return Place::Invalid;
  return range->second.kind == Range::Pinned || range->second.kind == Range::Registered ? Place::Host : Place::Device;
}

CUresult copy(uintptr_t to, uintptr_t from, size_t bytes, const std::shared_ptr<Stream>& stream, bool blocks) {
  if (bytes == 0) return CUDA_SUCCESS;
  const Place target = place_of(to, bytes), source = place_of(from, bytes);
  if (target == Place::Invalid || source == Place::Invalid) return CUDA_ERROR_INVALID_VALUE;
  auto* const destination = reinterpret_cast<void*>(to);
  auto* const origin = reinterpret_cast<const char*>(from);
  if (is_captured(stream)) {
    CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_MEMCPY);
    params.memcpy.copyCtx = reinterpret_cast<CUcontext>(stream->context);
    CUDA_MEMCPY3D& all = params.memcpy.copyParams;
    all.srcMemoryType = source == Place::Device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    all.dstMemoryType = target == Place::Device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    (source == Place::Device ? all.srcDevice : reinterpret_cast<CUdeviceptr&>(all.srcHost)) = from;
    (target == Place::Device ? all.dstDevice : reinterpret_cast<CUdeviceptr&>(all.dstHost)) = to;
    all.WidthInBytes = bytes;
    all.Height = all.Depth = 1;
    return submit_or_capture(stream, params,
                             [destination, origin, bytes] { std::memmove(destination, origin, bytes); });
  }
  uint64_t number = 0;
  const CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_MEMCPY);
  CUresult failed;
  if (source == Place::Pageable && target != Place::Pageable) {  // read at once, so that the program may change it
    const auto work = [destination, kept = std::vector<char>(origin, origin + bytes)] {
      std::memcpy(destination, kept.data(), kept.size());
    };
    failed = submit_or_capture(stream, params, work, &number);
  } else {
    const auto work = [destination, origin, bytes] { std::memmove(destination, origin, bytes); };
    failed = submit_or_capture(stream, params, work, &number);
  }
  if (failed) return failed;
  if (blocks || target == Place::Pageable) stream->wait(number);
  return CUDA_SUCCESS;
}

template <typename Element>
CUresult fill(CUdeviceptr to, Element value, size_t count, const std::shared_ptr<Stream>& stream) {
  if (count == 0) return CUDA_SUCCESS;
  if (to % sizeof value) return CUDA_ERROR_INVALID_VALUE;
  {
    const Lock lock(machine().mutex);
    if (!is_accessible(to, count * sizeof value, stream->context)) return CUDA_ERROR_INVALID_VALUE;
  }
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_MEMSET);
  params.memset = {to, 0, value, sizeof value, count, 1, reinterpret_cast<CUcontext>(stream->context)};
  const auto work = [to, value, count] { std::fill_n(reinterpret_cast<Element*>(to), count, value); };
  return submit_or_capture(stream, params, work);
}

// Fills on the default stream; the host waits unless it is memory of a device.
template <typename Element>
CUresult fill_on_legacy(CUdeviceptr to, Element value, size_t count, const Context* context) {
  if (const CUresult failed = fill(to, value, count, context->legacy)) return failed;
  Range::Kind kind;
  {
    const Lock lock(machine().mutex);
    const auto* const range = range_at(to);
    kind = range ? range->second.kind : Range::Device;
  }
  if (kind != Range::Device && kind != Range::Mapped) context->legacy->wait(context->legacy->submitted());
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  CALL(cuMemcpyAsync);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  return copy(to, from, bytes, stream, false);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CALL(cuMemcpy);
  CURRENT_CONTEXT(context);
  return copy(to, from, bytes, context->legacy, true);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream handle) {
  CALL(cuMemcpyHtoDAsync);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  return copy(to, reinterpret_cast<uintptr_t>(from), bytes, stream, false);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  CALL(cuMemcpyHtoD);
  CURRENT_CONTEXT(context);
  return copy(to, reinterpret_cast<uintptr_t>(from), bytes, context->legacy, true);
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
  CALL(cuMemcpyDtoHAsync);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  return copy(reinterpret_cast<uintptr_t>(to), from, bytes, stream, false);
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  CALL(cuMemcpyDtoH);
  CURRENT_CONTEXT(context);
  return copy(reinterpret_cast<uintptr_t>(to), from, bytes, context->legacy, true);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  CALL(cuMemcpyDtoDAsync);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  return copy(to, from, bytes, stream, false);
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CALL(cuMemcpyDtoD);
  CURRENT_CONTEXT(context);
  return copy(to, from, bytes, context->legacy, false);  // the host does not wait
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream handle) {
  CALL(cuMemsetD8Async);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  return fill(to, value, count, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream handle) {
  CALL(cuMemsetD16Async);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  return fill(to, value, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream handle) {
  CALL(cuMemsetD32Async);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  return fill(to, value, count, stream);
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  CALL(cuMemsetD8);
  CURRENT_CONTEXT(context);
  return fill_on_legacy(to, value, count, context);
}

CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  CALL(cuMemsetD16);
  CURRENT_CONTEXT(context);
  return fill_on_legacy(to, value, count, context);
}

CUresult cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  CALL(cuMemsetD32);
  CURRENT_CONTEXT(context);
  return fill_on_legacy(to, value, count, context);
}

}  // extern "C"
