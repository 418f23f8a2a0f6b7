// Kernel of strided_copy.cpp, which includes this file once per instruction set (hence no #pragma once), with LEVEL as
// its namespace: copies, conversions and fills of the elements along one axis.

namespace forebay::LEVEL {
namespace {

template <template <class> class At, class To, class From>
FOREBAY_INLINE void convert_elements(char* __restrict to, const char* __restrict source, ptrdiff_t to_step,
                                     ptrdiff_t source_step, size_t count) {
  for (ptrdiff_t i = 0; i < static_cast<ptrdiff_t>(count); ++i) {
    store<At>(to + i * to_step, convert::element<To>(load<At, From>(source + i * source_step)));
  }
}

template <class T>
bool is_contiguous(const void* address, ptrdiff_t step) {
  return step == sizeof(T) && reinterpret_cast<uintptr_t>(address) % alignof(T) == 0;
}

template <class To, class From>
void convert_row(const Row& row, size_t) {
  if (is_contiguous<To>(row.to, row.to_step) && is_contiguous<From>(row.source, row.source_step)) {
    convert_elements<Aligned, To, From>(row.to, row.source, sizeof(To), sizeof(From), row.count);
  } else {
    convert_elements<Unaligned, To, From>(row.to, row.source, row.to_step, row.source_step, row.count);
  }
}

template <class Word>
void fill_contiguous(char* to, Word value, size_t count) {
  for (size_t i = 0; i < count; ++i) store<Aligned>(to + i * sizeof(Word), value);
}

template <class Word>
void move_row(const Row& row, size_t) {
  constexpr ptrdiff_t kSize = sizeof(Word);
  if (row.source_step == 0 && is_contiguous<Word>(row.to, row.to_step)) {
    fill_contiguous(row.to, load<Unaligned, Word>(row.source), row.count);
  } else if (row.to_step == kSize && row.source_step == kSize) {
    std::memcpy(row.to, row.source, row.count * sizeof(Word));
  } else {
    convert_elements<Unaligned, Word, Word>(row.to, row.source, row.to_step, row.source_step, row.count);
  }
}

void move_bytes_row(const Row& row, size_t size) {
  const bool contiguous = row.to_step == static_cast<ptrdiff_t>(size);
  if (contiguous && row.source_step == row.to_step) {
    std::memcpy(row.to, row.source, row.count * size);
    return;
  }
  for (size_t i = 0; i < row.count; ++i) {
    const auto at = static_cast<ptrdiff_t>(i);
    std::memcpy(row.to + at * row.to_step, row.source + at * row.source_step, size);
  }
}

RunRow mover(size_t size) {
  switch (size) {
    case 1:
      return move_row<uint8_t>;
    case 2:
      return move_row<uint16_t>;
    case 4:
      return move_row<uint32_t>;
    case 8:
      return move_row<uint64_t>;
    case 16:
      return move_row<Word16>;
    default:
      return move_bytes_row;
  }
}

template <class To, class... Types>
constexpr std::array<RunRow, sizeof...(Types)> converters_to() {
  return {convert_row<To, Types>...};
}

template <class... Types>
struct Converters {
  static constexpr size_t kSizes[] = {sizeof(Types)...};
  static constexpr std::array<RunRow, sizeof...(Types)> kTable[] = {converters_to<Types, Types...>()...};
};
// In the order of Format.
using All =
    Converters<convert::Bool, uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t,
               convert::Float16, convert::BFloat16, float, double, convert::Complex<float>, convert::Complex<double>>;

// Returns the function for elements of two formats, of `size` bytes in the destination.
RunRow row_function(size_t to_format, size_t source_format, size_t size) {
  return to_format == source_format ? mover(size) : All::kTable[to_format][source_format];
}

}  // namespace
}  // namespace forebay::LEVEL
