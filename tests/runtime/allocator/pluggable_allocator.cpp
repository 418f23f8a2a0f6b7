// Allocators that a user might bring, good and bad, and what they were told.
#include <sys/types.h>

#include <cstdlib>

extern "C" {
ssize_t taken = 0, given = 0, held = 0;
int device_seen = -1, devices = -1, resets = 0, fraction_device = -1;
void *stream_seen = nullptr, *recorded = nullptr, *recorded_on = nullptr;
double fraction = -1;

void forget() {
  taken = given = held = 0, device_seen = devices = fraction_device = -1, resets = 0, fraction = -1;
  stream_seen = recorded = recorded_on = nullptr;
}

void* take(ssize_t nbytes, int device, void* stream) {
  void* memory = nullptr;
  if (nbytes > ssize_t{64} << 20 || posix_memalign(&memory, 4096, nbytes)) return nullptr;
  ++taken, held += nbytes, device_seen = device, stream_seen = stream;
  return memory;
}

void give(void* memory, ssize_t nbytes, int, void*) {
  ++given, held -= nbytes;
  free(memory);
}

void* nothing(ssize_t, int, void*) { return nullptr; }

void* crooked(ssize_t nbytes, int device, void* stream) {
  return static_cast<char*>(take(nbytes + 8, device, stream)) + 8;
}
void give_crooked(void* memory, ssize_t nbytes, int device, void* stream) {
  give(static_cast<char*>(memory) - 8, nbytes + 8, device, stream);
}

void* the_same(ssize_t nbytes, int device, void* stream) {
  static void* memory = take(32 << 20, device, stream);
  return nbytes > 32 << 20 ? nullptr : memory;
}
void keep(void*, ssize_t, int, void*) {}

void told_devices(int count) { devices = count; }
void told_reset() { ++resets; }
void told_fraction(double share, int device) { fraction = share, fraction_device = device; }
void told_record(void* memory, void* stream) { recorded = memory, recorded_on = stream; }
}
