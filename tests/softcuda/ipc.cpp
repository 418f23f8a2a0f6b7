// Memory of other processes, and waits for values in memory.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "machine.hpp"

using namespace softcuda;

namespace {

constexpr char kMagic[8] = {'s', 'o', 'f', 't', 'c', 'u', 'd', 'a'};

// Content of a CUipcMemHandle. The file's number in the system makes the handle of each allocation unique.
struct Handle {
  char magic[8];
  int process, file;
  uint64_t bytes, number;
  Uuid uuid;  // of the GPU
  char rest[16];
};
static_assert(sizeof(Handle) == sizeof(CUipcMemHandle), "a handle has 64 bytes");

// Opens the file of a handle, or returns -1 if it is not shared any more.
int open_file(const Handle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  char target[256];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length < 0 || std::string(target, static_cast<size_t>(length)).rfind("/memfd:softcuda:", 0) != 0) return -1;
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found;
  if (file >= 0 && fstat(file, &found) == 0 && found.st_ino == handle.number) return file;
  if (file >= 0) close(file);
  return -1;
}

Device* device_of(const Uuid& uuid) {
  for (Device& device : machine().devices) {
    if (device.gpu.uuid == uuid) return &device;
  }
  return nullptr;
}

}  // namespace

namespace softcuda {

bool is_imported_elsewhere(const Range& range) {
  if (!range.exported || flock(range.file, LOCK_EX | LOCK_NB) == 0) return false;
  return true;  // a process that has opened the memory holds a shared lock
}

}  // namespace softcuda

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* result, CUdeviceptr address) {
  CALL(cuIpcGetMemHandle);
  CURRENT_CONTEXT(context);
  const Lock lock(machine().mutex);
  auto* const range = range_at(address);
  if (result == nullptr || range == nullptr || range->second.kind != Range::Device) return CUDA_ERROR_INVALID_VALUE;
  if (range->second.device != context->device) return CUDA_ERROR_INVALID_CONTEXT;
  struct stat found;
  if (fstat(range->second.file, &found) != 0) return CUDA_ERROR_INVALID_VALUE;
  Handle handle{};
  std::memcpy(handle.magic, kMagic, sizeof kMagic);
  handle.process = getpid();
  handle.file = range->second.file;
  handle.bytes = range->second.bytes;
  handle.number = found.st_ino;
  handle.uuid = machine().devices[static_cast<size_t>(range->second.device)].gpu.uuid;
  range->second.exported = true;
  std::memcpy(result, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

// Opening a handle of this process is an error, as on a GPU. A second opening returns the same address.
CUresult cuIpcOpenMemHandle(CUdeviceptr* result, CUipcMemHandle opened, unsigned flags) {
  CALL(cuIpcOpenMemHandle);
  CURRENT_CONTEXT(context);
  if (result == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  Handle handle;
  std::memcpy(&handle, &opened, sizeof handle);
  if (std::memcmp(handle.magic, kMagic, sizeof kMagic) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (handle.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const Lock lock(machine().mutex);
  for (auto& range : machine().ranges) {
    if (range.second.kind != Range::Imported || range.second.number != handle.number) continue;
    ++range.second.references;
    *result = range.first;
    return CUDA_SUCCESS;
  }
  const Device* const owner = device_of(handle.uuid);
  if (owner == nullptr) return CUDA_ERROR_MAP_FAILED;  // this process does not see the GPU
  const int file = open_file(handle);
  if (file < 0) return CUDA_ERROR_INVALID_HANDLE;
  flock(file, LOCK_SH | LOCK_NB);
  Range range{Range::Imported, handle.bytes, owner->context.device, file};
  range.number = handle.number;
  void* address;
  if (const CUresult failed = add_range(range, PROT_READ | PROT_WRITE, &address)) {
    close(file);
    return failed;
  }
  if (owner->context.device != context->device) context->peers.insert(owner->context.device);
  *result = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  CALL(cuIpcCloseMemHandle);
  CURRENT_CONTEXT(context);
  {
    const Lock lock(machine().mutex);
    const auto found = machine().ranges.find(address);
    if (found == machine().ranges.end() || found->second.kind != Range::Imported) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.references) return CUDA_SUCCESS;
  }
  return remove_range(address, Range::Imported, CUDA_ERROR_INVALID_VALUE);
}

// The address must be that of pinned or device memory, as for a GPU. The stream waits until another stream or the host
// has written the value.
CUresult cuStreamWaitValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  CALL(cuStreamWaitValue32);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (address % sizeof value || flags > CU_STREAM_WAIT_VALUE_AND) return CUDA_ERROR_INVALID_VALUE;
  {
    const Lock lock(machine().mutex);
    const auto* const range = range_at(address);
    if (range == nullptr || range->second.kind == Range::Managed) return CUDA_ERROR_INVALID_VALUE;
    if (!is_accessible(address, sizeof value, stream->context)) return CUDA_ERROR_INVALID_VALUE;
  }
  submit(stream, [word = reinterpret_cast<const volatile cuuint32_t*>(address), value, flags] {
    const auto holds = [&](cuuint32_t found) {
      if (flags == CU_STREAM_WAIT_VALUE_GEQ) return static_cast<int32_t>(found - value) >= 0;
      return flags == CU_STREAM_WAIT_VALUE_EQ ? found == value : (found & value) != 0;
    };
    while (!holds(*word) && machine().sticky == CUDA_SUCCESS) usleep(20);
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  CALL(cuStreamWriteValue32);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (address % sizeof value || flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
  {
    const Lock lock(machine().mutex);
    if (!is_accessible(address, sizeof value, stream->context)) return CUDA_ERROR_INVALID_VALUE;
  }
  submit(stream, [word = reinterpret_cast<volatile cuuint32_t*>(address), value] { *word = value; });
  return CUDA_SUCCESS;
}
}
