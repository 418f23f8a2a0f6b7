// Strided copies: elements of any layout and type are copied and converted; and fills, which copy one element to all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "random/draw.hpp"  // Level, Span

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

constexpr size_t kMaxAxes = 64;   // NumPy's limit
constexpr int kNoHostMemory = 2;  // cudaErrorMemoryAllocation: no memory for an overlapping source

bool is_valid_strided_copy(const void* packed, size_t nbytes);
int run_strided_copy(const void* packed, Level level = best_level());  // returns 0 or an error code

// Memory that a copy touches, including gaps between elements.
Span copy_written_span(const void* packed);
Span copy_read_span(const void* packed);

// Passes the written memory to `visit`, without the gaps of 2 MiB or more, until it returns true. Returns whether it
// did.
bool any_written_span(const void* packed, const std::function<bool(Span)>& visit);

}  // namespace forebay
