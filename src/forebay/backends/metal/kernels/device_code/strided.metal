// Kernel of strided copies without conversion, and of fills with one element.
#include <metal_stdlib>
using namespace metal;

// As packed by Python; the axes follow in a buffer of their own.
struct CopyJob {
  ulong count;                      // of elements
  ulong to_origin, source_origin;   // of the first elements, in bytes from the beginning of the bound memory
  uint size, axes;                  // bytes of an element; number of axes
  uint word;                        // bytes that are copied at once: 1, 2, 4 or 8, to which all elements are aligned
  uint unused;
};

struct CopyAxis {
  ulong length;
  long to_step, source_step;  // bytes
};

kernel void copy_strided(device uchar* to [[buffer(0)]], const device uchar* source [[buffer(1)]],
                         constant CopyJob& job [[buffer(2)]], constant CopyAxis* axes [[buffer(3)]],
                         uint index [[thread_position_in_grid]], uint step [[threads_per_grid]]) {
  for (ulong number = index; number < job.count; number += step) {
    ulong rest = number, to_offset = job.to_origin, source_offset = job.source_origin;
    for (uint at = job.axes; at-- > 0;) {
      const ulong position = rest % axes[at].length;
      rest /= axes[at].length;
      to_offset += position * ulong(axes[at].to_step);
      source_offset += position * ulong(axes[at].source_step);
    }
    for (uint at = 0; at < job.size; at += job.word) {
      device uchar* const place = to + to_offset + at;
      const device uchar* const from = source + source_offset + at;
      if (job.word == 8) {
        *reinterpret_cast<device ulong*>(place) = *reinterpret_cast<const device ulong*>(from);
      } else if (job.word == 4) {
        *reinterpret_cast<device uint*>(place) = *reinterpret_cast<const device uint*>(from);
      } else if (job.word == 2) {
        *reinterpret_cast<device ushort*>(place) = *reinterpret_cast<const device ushort*>(from);
      } else {
        *place = *from;
      }
    }
  }
}
