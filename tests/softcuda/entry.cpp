// Initialisation, look-up of functions, names of errors, devices and contexts.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "machine.hpp"

using namespace softcuda;

namespace softcuda {

std::vector<Context*>& context_stack() {
  thread_local std::vector<Context*> stack;
  return stack;
}

Context* current_context() {
  const auto& stack = context_stack();
  if (stack.empty() || stack.back() == nullptr) return nullptr;
  return stack.back()->references ? stack.back() : nullptr;
}

}  // namespace softcuda

namespace {

constexpr int kVersion = 13000;

struct Name {
  CUresult code;
  const char *name, *text;
};
const Name kNames[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "primary context already active"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which violated constraints specific to "
     "instantiated graph update"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Name* name_of(CUresult code) {
  for (const Name& each : kNames) {
    if (each.code == code) return &each;
  }
  return nullptr;
}

Device* device_of(CUdevice index) {
  auto& devices = machine().devices;
  return index >= 0 && static_cast<size_t>(index) < devices.size() ? &devices[static_cast<size_t>(index)] : nullptr;
}

#define DEVICE(name, index)              \
  Device* const name = device_of(index); \
  if (name == nullptr) return CUDA_ERROR_INVALID_DEVICE

Context* context_of(CUcontext handle) {
  for (auto& device : machine().devices) {
    if (reinterpret_cast<CUcontext>(&device.context) == handle) return &device.context;
  }
  return nullptr;
}

// A function that programs look up and that does not exist here. Each has a number, so that its calls can be logged.
constexpr size_t kStubs = 1024;
std::vector<std::string>& stub_names() {
  static auto* const names = new std::vector<std::string>;
  return *names;
}
template <size_t number>
CUresult stub() {
  const Lock lock(machine().mutex);
  machine().missing.insert(stub_names()[number]);
  return CUDA_ERROR_NOT_SUPPORTED;
}
template <size_t... numbers>
std::array<CUresult (*)(), sizeof...(numbers)> make_stubs(std::index_sequence<numbers...>) {
  return {stub<numbers>...};
}

void* stub_of(const std::string& name) {
  static const auto stubs = make_stubs(std::make_index_sequence<kStubs>());
  const Lock lock(machine().mutex);
  auto& names = stub_names();
  const size_t number = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  if (number == kStubs) return nullptr;
  if (number == names.size()) names.push_back(name);
  return reinterpret_cast<void*>(stubs[number]);
}

// Returns the newest version of a function, as the headers of this version of CUDA declare only that.
void* find(const std::string& symbol) {
  static void* const library = [] {
    Dl_info own;
    dladdr(reinterpret_cast<void*>(&softcuda::machine), &own);
    return dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  for (const char* suffix : {"_v4", "_v3", "_v2", "", "WithFlags"}) {
    if (void* found = dlsym(library, (symbol + suffix).c_str())) return found;
  }
  return nullptr;
}

void reset(Context* context) {
  wait_for_all(context);
  const Lock lock(machine().mutex);
  for (const auto& stream : context->streams) stream->finish();
  context->streams.clear();
  context->peers.clear();
  drop_events(context);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  static const Function called("cuInit", false);
  if (const CUresult failed = begin_call(called)) return failed;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (const size_t seconds = number_from("SOFTCUDA_INIT_SECONDS", 0)) sleep(static_cast<unsigned>(seconds));
  if (const size_t code = number_from("SOFTCUDA_INIT_ERROR", 0)) return static_cast<CUresult>(code);
  Machine& state = machine();
  const Lock lock(state.mutex);
  if (state.process && state.process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  if (state.devices.empty()) return CUDA_ERROR_NO_DEVICE;
  if (state.process) return CUDA_SUCCESS;
  state.process = getpid();
  for (Device& device : state.devices) {
    device.context.id = static_cast<uint64_t>(device.context.device) + 1;
    device.context.legacy = std::make_shared<Stream>(&device.context, CU_STREAM_DEFAULT, 0);
  }
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  static const Function called("cuDriverGetVersion", false);
  if (const CUresult failed = begin_call(called)) return failed;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* text = std::getenv("SOFTCUDA_VERSION");
  *version = text && *text ? std::atoi(text) : kVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** result, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *result = find(symbol);
  if (*result == nullptr) *result = stub_of(symbol);
  if (status) *status = *result ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *result ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetErrorName(CUresult code, const char** text) {
  const Name* const found = name_of(code);
  *text = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  const Name* const found = name_of(code);
  *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int* count) {
  CALL(cuDeviceGetCount);
  *count = static_cast<int>(machine().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* result, int index) {
  CALL(cuDeviceGet);
  DEVICE(device, index);
  *result = device->context.device;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* text, int capacity, CUdevice index) {
  CALL(cuDeviceGetName);
  DEVICE(device, index);
  std::snprintf(text, static_cast<size_t>(capacity), "%s", device->gpu.name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* result, CUdevice index) {
  CALL(cuDeviceGetUuid);
  DEVICE(device, index);
  std::memcpy(result->bytes, device->gpu.uuid.data(), device->gpu.uuid.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice index) {
  CALL(cuDeviceTotalMem);
  DEVICE(device, index);
  *bytes = device->gpu.memory;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int capacity, CUdevice index) {
  CALL(cuDeviceGetPCIBusId);
  DEVICE(device, index);
  std::snprintf(text, static_cast<size_t>(capacity), "0000:%02X:00.0", device->gpu.index + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice index) {
  CALL(cuDeviceGetAttribute);
  DEVICE(device, index);
  const Lock lock(machine().mutex);
  const auto found = machine().attributes.find(attribute);
  *value = found == machine().attributes.end() ? 0 : found->second;
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = device->gpu.index + 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* result, CUdevice index, CUdevice peer) {
  CALL(cuDeviceCanAccessPeer);
  DEVICE(device, index);
  DEVICE(other, peer);
  *result = device != other && number_from("SOFTCUDA_PEERS", 1);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice index) {
  CALL(cuDevicePrimaryCtxRetain);
  DEVICE(device, index);
  const Lock lock(machine().mutex);
  ++device->context.references;
  *result = reinterpret_cast<CUcontext>(&device->context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice index) {
  CALL(cuDevicePrimaryCtxRelease);
  DEVICE(device, index);
  {
    const Lock lock(machine().mutex);
    if (!device->context.references) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->context.references) return CUDA_SUCCESS;
  }
  reset(&device->context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice index) {
  CALL(cuDevicePrimaryCtxReset);
  DEVICE(device, index);
  {
    const Lock lock(machine().mutex);
    device->context.references = 0;
  }
  reset(&device->context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned* flags, int* active) {
  CALL(cuDevicePrimaryCtxGetState);
  DEVICE(device, index);
  const Lock lock(machine().mutex);
  *flags = device->context.flags;
  *active = device->context.references > 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice index, unsigned flags) {
  CALL(cuDevicePrimaryCtxSetFlags);
  DEVICE(device, index);
  const Lock lock(machine().mutex);
  device->context.flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* result) {
  CALL(cuCtxGetCurrent);
  const auto& stack = context_stack();
  *result = stack.empty() ? nullptr : reinterpret_cast<CUcontext>(stack.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  CALL(cuCtxSetCurrent);
  Context* const context = context_of(handle);
  if (handle && !context) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = context_stack();
  if (!stack.empty()) stack.pop_back();
  if (context) stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext handle) {
  CALL(cuCtxPushCurrent);
  Context* const context = context_of(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* result) {
  CALL(cuCtxPopCurrent);
  auto& stack = context_stack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (result) *result = reinterpret_cast<CUcontext>(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* result) {
  CALL(cuCtxGetDevice);
  CURRENT_CONTEXT(context);
  *result = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  CALL(cuCtxGetId);
  const Context* const context = handle ? context_of(handle) : current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned* flags) {
  CALL(cuCtxGetFlags);
  CURRENT_CONTEXT(context);
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  CALL(cuCtxSynchronize);
  CURRENT_CONTEXT(context);
  if (const CUresult failed = check_context_not_capturing(context)) return failed;
  wait_for_all(context);
  return machine().sticky;
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  CALL(cuCtxEnablePeerAccess);
  CURRENT_CONTEXT(context);
  const Context* const peer = context_of(handle);
  if (!peer || flags) return CUDA_ERROR_INVALID_VALUE;
  if (peer == context) return CUDA_ERROR_INVALID_DEVICE;
  if (!number_from("SOFTCUDA_PEERS", 1)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const Lock lock(machine().mutex);
  return context->peers.insert(peer->device).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  CALL(cuCtxDisablePeerAccess);
  CURRENT_CONTEXT(context);
  const Context* const peer = context_of(handle);
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  const Lock lock(machine().mutex);
  return context->peers.erase(peer->device) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
}
