// NVML: the sensors of the machine's GPUs, and which processes use their memory.
#include <dirent.h>
#include <nvml.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "hardware.hpp"

using softcuda::Gpu;

namespace {

struct State {
  std::mutex mutex;
  unsigned references = 0;  // of nvmlInit
  std::deque<Gpu> gpus;     // never moved, as handles are their addresses; those of the machine come first
  size_t count = 0;
  std::map<std::string, nvmlReturn_t> failing;
};

State& state() {
  static auto* const made = new State;
  return *made;
}

using Lock = std::lock_guard<std::mutex>;

nvmlReturn_t begin_call(const char* name) {
  const auto found = state().failing.find(name);
  if (found != state().failing.end()) return found->second;
  return state().references ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

Gpu* gpu_of(nvmlDevice_t handle) {
  for (Gpu& each : state().gpus) {
    if (reinterpret_cast<nvmlDevice_t>(&each) == handle) return &each;
  }
  return nullptr;
}

// Begins a function of a device, or of a GPU but not an instance.
#define CALL(name)                \
  const Lock lock(state().mutex); \
  if (const nvmlReturn_t failed = begin_call(#name)) return failed
#define DEVICE(name, handle)        \
  Gpu* const name = gpu_of(handle); \
  if (name == nullptr) return NVML_ERROR_INVALID_ARGUMENT
#define WHOLE_GPU(name, handle) \
  DEVICE(name, handle);         \
  if (name->instance >= 0) return NVML_ERROR_NOT_SUPPORTED

nvmlReturn_t give(nvmlDevice_t* result, Gpu& gpu) {
  *result = reinterpret_cast<nvmlDevice_t>(&gpu);
  return NVML_SUCCESS;
}

nvmlReturn_t text(char* result, unsigned capacity, const std::string& value) {
  if (value.size() >= capacity) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::strcpy(result, value.c_str());
  return NVML_SUCCESS;
}

// Returns the device memory of each process: the sizes of its memory files with the GPU's name.
std::map<unsigned, unsigned long long> used_by_process(const Gpu& gpu) {
  std::map<unsigned, unsigned long long> used;
  const std::string title = "/memfd:" + softcuda::file_title(gpu);
  DIR* const processes = opendir("/proc");
  while (const dirent* process = processes ? readdir(processes) : nullptr) {
    const unsigned number = static_cast<unsigned>(std::strtoul(process->d_name, nullptr, 10));
    const std::string folder = std::string("/proc/") + process->d_name + "/fd";
    DIR* const files = number ? opendir(folder.c_str()) : nullptr;
    while (const dirent* file = files ? readdir(files) : nullptr) {
      const std::string path = folder + "/" + file->d_name;
      char target[256];
      const ssize_t length = readlink(path.c_str(), target, sizeof target);
      const std::string own = title + std::to_string(number) + " ";  // not a file of another process that it opened
      if (length < 0 || std::string(target, static_cast<size_t>(length)).rfind(own, 0) != 0) continue;
      struct stat found;
      if (stat(path.c_str(), &found) == 0) used[number] += static_cast<unsigned long long>(found.st_size);
    }
    if (files) closedir(files);
  }
  if (processes) closedir(processes);
  return used;
}

unsigned long long used_memory(const Gpu& gpu) {
  unsigned long long used = 0;
  for (const auto& process : used_by_process(gpu)) used += process.second;
  if (gpu.instance >= 0 || !softcuda::has_mig_mode(gpu.index)) return used;
  for (const Gpu& instance : softcuda::instances(gpu)) used += used_memory(instance);
  return used;
}

nvmlReturn_t initialise() {
  const Lock lock(state().mutex);
  if (const size_t code = softcuda::number_from("SOFTCUDA_NVML_ERROR", 0)) return static_cast<nvmlReturn_t>(code);
  const nvmlReturn_t failed = begin_call("nvmlInit");
  if (failed != NVML_SUCCESS && failed != NVML_ERROR_UNINITIALIZED) return failed;
  ++state().references;
  if (!state().gpus.empty()) return NVML_SUCCESS;
  for (const Gpu& gpu : softcuda::all_gpus()) state().gpus.push_back(gpu);
  state().count = state().gpus.size();
  for (size_t index = 0; index < state().count; ++index) {
    const Gpu gpu = state().gpus[index];
    if (!softcuda::has_mig_mode(gpu.index)) continue;
    for (const Gpu& instance : softcuda::instances(gpu)) state().gpus.push_back(instance);
  }
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

// Makes a function fail with a code until it is called with 0.
void softnvml_fail(const char* name, int code) {
  const Lock lock(state().mutex);
  state().failing.erase(name);
  if (code) state().failing[name] = static_cast<nvmlReturn_t>(code);
}

nvmlReturn_t nvmlInit_v2() { return initialise(); }
nvmlReturn_t nvmlInitWithFlags(unsigned) { return initialise(); }

nvmlReturn_t nvmlShutdown() {
  CALL(nvmlShutdown);
  --state().references;
  return NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t code) {
  switch (code) {
    case NVML_SUCCESS:
      return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return "Driver/library version mismatch";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* result, unsigned capacity) {
  CALL(nvmlSystemGetDriverVersion);
  return text(result, capacity, "580.00");
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  CALL(nvmlDeviceGetCount);
  *count = static_cast<unsigned>(state().count);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* result) {
  CALL(nvmlDeviceGetHandleByIndex);
  return index < state().count ? give(result, state().gpus[index]) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* result) {
  CALL(nvmlDeviceGetHandleByUUID);
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (Gpu& gpu : state().gpus) {
    if (softcuda::uuid_text(gpu) == uuid) return give(result, gpu);
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* index) {
  CALL(nvmlDeviceGetIndex);
  DEVICE(gpu, handle);
  *index = static_cast<unsigned>(gpu->instance < 0 ? gpu->index : gpu->instance);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char* result, unsigned capacity) {
  CALL(nvmlDeviceGetUUID);
  DEVICE(gpu, handle);
  return text(result, capacity, softcuda::uuid_text(*gpu));
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char* result, unsigned capacity) {
  CALL(nvmlDeviceGetName);
  DEVICE(gpu, handle);
  return text(result, capacity, gpu->name);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* memory) {
  CALL(nvmlDeviceGetMemoryInfo);
  DEVICE(gpu, handle);
  memory->total = gpu->memory;
  memory->used = used_memory(*gpu);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* rates) {
  CALL(nvmlDeviceGetUtilizationRates);
  WHOLE_GPU(gpu, handle);
  *rates = {40 + static_cast<unsigned>(gpu->index), 20 + static_cast<unsigned>(gpu->index)};
  return softcuda::has_mig_mode(gpu->index) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t sensor, unsigned* degrees) {
  CALL(nvmlDeviceGetTemperature);
  WHOLE_GPU(gpu, handle);
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  *degrees = 50 + static_cast<unsigned>(gpu->index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned* milliwatts) {
  CALL(nvmlDeviceGetPowerUsage);
  WHOLE_GPU(gpu, handle);
  *milliwatts = 300'000 + static_cast<unsigned>(gpu->index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned* megahertz) {
  CALL(nvmlDeviceGetClockInfo);
  WHOLE_GPU(gpu, handle);
  *megahertz = 1000 * static_cast<unsigned>(type) + static_cast<unsigned>(gpu->index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count, nvmlProcessInfo_t* infos) {
  CALL(nvmlDeviceGetComputeRunningProcesses);
  DEVICE(gpu, handle);
  const auto used = used_by_process(*gpu);
  const bool fits = *count >= used.size();
  *count = static_cast<unsigned>(used.size());
  if (!fits) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (const auto& [process, bytes] : used) *infos++ = {process, bytes, 0xffffffff, 0xffffffff};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned* result) {
  CALL(nvmlDeviceIsMigDeviceHandle);
  DEVICE(gpu, handle);
  *result = gpu->instance >= 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t* result) {
  CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
  DEVICE(gpu, handle);
  if (gpu->instance < 0) return NVML_ERROR_INVALID_ARGUMENT;
  return give(result, state().gpus[static_cast<size_t>(gpu->index)]);
}
}
