// Strided copies as packed by Python, for queues and for kernels of GPUs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay {

// Bytes are elements of any type, which are not converted.
enum class Format : uint8_t { Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64, C64, C128, Bytes };

enum CopyFlags : uint8_t {
  kFill = 1,        // the source is one element, whose bytes follow the axes; it has the destination's type
  kMayOverlap = 2,  // the source may share memory with the destination: it is read completely first
};

// Header of a packed copy; followed by the axes, and by the element of a fill.
struct StridedCopy {
  uint64_t to, source;              // addresses of the first elements
  uint64_t to_size, source_size;    // bytes of an element
  Format to_format, source_format;  // both Bytes, or neither
  uint8_t flags, axes;
  uint32_t unused;
};
static_assert(sizeof(StridedCopy) == 40, "Python packs copies of 40 bytes");

struct CopyAxis {
  uint64_t length;
  int64_t to_step, source_step;  // bytes
};

constexpr size_t kMaxAxes = 64;  // NumPy's limit

}  // namespace forebay
