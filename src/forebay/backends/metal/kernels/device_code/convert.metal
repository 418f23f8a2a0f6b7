// Kernel of strided copies that convert elements, with the results of native/queue/convert.hpp. philox.metal precedes
// this text, and Python defines how an element is stored on each side: FROM_BITS and TO_BITS, the type of its bits;
// LOAD(bits), its value; and STORE(value), the bits of a value. Conversions of floats to integers are the host's, as
// Metal leaves undefined what a number out of range becomes.

// As packed by Python; the axes follow in a buffer of their own.
struct CopyJob {
  ulong count;                     // of elements
  ulong to_origin, source_origin;  // of the first elements, in bytes from the beginning of the bound memory
  uint axes, aligned;              // aligned: whether all elements are aligned to their size
};

struct CopyAxis {
  ulong length;
  long to_step, source_step;  // bytes
};

// A GPU may treat floats below 2^-126 as 0, so that the smallest float16 numbers are made of integers.
inline float float_of_float16(ushort bits) {
  const uint exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF, sign = uint(bits & 0x8000) << 16;
  const float tiny = float(mantissa) * 5.96046448e-08f;
  const uint inside = (exponent + 112) << 23 | mantissa << 13, outside = 0x7F800000u | mantissa << 13;
  return as_type<float>(sign | (exponent == 0 ? as_type<uint>(tiny) : exponent == 31 ? outside : inside));
}

inline float float_of_bfloat16(ushort bits) { return as_type<float>(uint(bits) << 16); }
inline bool is_true(float value) { return (as_type<uint>(value) & 0x7FFFFFFF) != 0; }

kernel void convert(device uchar* to [[buffer(0)]], const device uchar* source [[buffer(1)]],
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
    device uchar* const place = to + to_offset;
    const device uchar* const from = source + source_offset;
    if (job.aligned) {
      const FROM_BITS bits = *reinterpret_cast<const device FROM_BITS*>(from);
      *reinterpret_cast<device TO_BITS*>(place) = STORE(LOAD(bits));
    } else {
      ulong raw = 0;
      for (uint at = 0; at < sizeof(FROM_BITS); ++at) raw |= ulong(from[at]) << 8 * at;
      const FROM_BITS bits = FROM_BITS(raw);
      const ulong result = ulong(STORE(LOAD(bits)));
      for (uint at = 0; at < sizeof(TO_BITS); ++at) place[at] = uchar(result >> 8 * at);
    }
  }
}
