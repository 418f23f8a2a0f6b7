// Strided copies: elements of any layout and type are copied and converted; and fills, which copy one element to all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "queue/packed_copy.hpp"
#include "random/draw.hpp"  // Level, Span

namespace forebay {

constexpr int kNoHostMemory = 2;  // cudaErrorMemoryAllocation: no memory for an overlapping source

bool is_valid_strided_copy(const void* packed, size_t nbytes);
// Writes the header and the axes: without axes of length 1 and those that can be merged, with positive and descending
// steps of the destination. Returns their size, or 0 if there are no elements.
size_t simplify_strided_copy(const void* packed, void* simplified);
int run_strided_copy(const void* packed, Level level = best_level());  // returns 0 or an error code

// Memory that a copy touches, including gaps between elements.
Span copy_written_span(const void* packed);
Span copy_read_span(const void* packed);

// Passes the written memory to `visit`, without the gaps of 2 MiB or more, until it returns true. Returns whether it
// did.
bool any_written_span(const void* packed, const std::function<bool(Span)>& visit);

}  // namespace forebay
