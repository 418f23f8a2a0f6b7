// The GPUs of the machine that the environment variables SOFTCUDA_* describe, for both libraries: libcuda and NVML.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace softcuda {

using Uuid = std::array<unsigned char, 16>;

constexpr size_t kMigInstances = 2;  // of each GPU with MIG mode

// A GPU, or an instance of a GPU with MIG mode.
struct Gpu {
  int index;     // among all GPUs of the machine, by PCI address
  int instance;  // -1 for a GPU
  std::string name;
  size_t memory;
  Uuid uuid;
};

size_t number_from(const char* variable, size_t otherwise);
std::string uuid_text(const Gpu& gpu);  // "GPU-…" or "MIG-…"

std::vector<Gpu> all_gpus();          // by PCI address
bool has_mig_mode(int index);         // of a GPU
std::vector<Gpu> instances(Gpu gpu);  // of a GPU with MIG mode
std::vector<Gpu> visible_to_cuda();   // in CUDA's order, as CUDA_VISIBLE_DEVICES selects them

// The memory file of a process's device memory has a name by which NVML finds it in /proc: SOFTCUDA_MACHINE, so that
// several tests can run at once, and the GPU; the process follows. Without that variable, each process has a machine of
// its own.
std::string file_title(const Gpu& gpu);

}  // namespace softcuda
