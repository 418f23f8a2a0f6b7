// Copies and fills of any alignment, which Metal's blits do not do on macOS.
#include <metal_stdlib>
using namespace metal;

kernel void copy_bytes(device uchar* to [[buffer(0)]], const device uchar* source [[buffer(1)]],
                       constant ulong& count [[buffer(2)]], uint index [[thread_position_in_grid]],
                       uint step [[threads_per_grid]]) {
  for (ulong at = index; at < count; at += step) to[at] = source[at];
}

kernel void fill_bytes(device uchar* to [[buffer(0)]], constant uchar& value [[buffer(1)]],
                       constant ulong& count [[buffer(2)]], uint index [[thread_position_in_grid]],
                       uint step [[threads_per_grid]]) {
  for (ulong at = index; at < count; at += step) to[at] = value;
}
