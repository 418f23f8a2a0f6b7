// Pluggable allocators, valid and invalid, that record how they were called.
#include <sys/types.h>

#include <cstdlib>

extern "C" {
ssize_t allocations = 0, frees = 0, held_bytes = 0;
int last_device = -1, devices = -1, resets = 0, fraction_device = -1;
void *last_stream = nullptr, *recorded_address = nullptr, *recorded_stream = nullptr;
double fraction = -1;

void reset_records() {
  allocations = frees = held_bytes = 0, last_device = devices = fraction_device = -1, resets = 0, fraction = -1;
  last_stream = recorded_address = recorded_stream = nullptr;
}

void* allocate(ssize_t nbytes, int device, void* stream) {
  void* memory = nullptr;
  if (nbytes > ssize_t{64} << 20 || posix_memalign(&memory, 4096, nbytes)) return nullptr;
  ++allocations, held_bytes += nbytes, last_device = device, last_stream = stream;
  return memory;
}

void release(void* memory, ssize_t nbytes, int, void*) {
  ++frees, held_bytes -= nbytes;
  free(memory);
}

void* allocate_nothing(ssize_t, int, void*) { return nullptr; }

void* misaligned(ssize_t nbytes, int device, void* stream) {
  return static_cast<char*>(allocate(nbytes + 8, device, stream)) + 8;
}
void release_misaligned(void* memory, ssize_t nbytes, int device, void* stream) {
  release(static_cast<char*>(memory) - 8, nbytes + 8, device, stream);
}

void* same(ssize_t nbytes, int device, void* stream) {
  static void* memory = allocate(32 << 20, device, stream);
  return nbytes > 32 << 20 ? nullptr : memory;
}
void release_nothing(void*, ssize_t, int, void*) {}

void on_init(int count) { devices = count; }
void on_reset() { ++resets; }
void on_fraction(double value, int device) { fraction = value, fraction_device = device; }
void on_record_stream(void* memory, void* stream) { recorded_address = memory, recorded_stream = stream; }
}
