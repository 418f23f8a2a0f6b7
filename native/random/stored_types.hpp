// Element types of random fills, and the conversion of numbers to them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "random/philox.hpp"

namespace forebay {
namespace {

enum class Float16 : uint16_t {};
enum class BFloat16 : uint16_t {};

// Converts as C++ and PyTorch do: 16-bit floats by way of a float.
template <class Stored, class Number>
FOREBAY_INLINE Stored store(Number number) {
  if constexpr (std::is_same_v<Stored, Float16>) {
    return static_cast<Stored>(philox::float16(static_cast<float>(number)));
  } else if constexpr (std::is_same_v<Stored, BFloat16>) {
    return static_cast<Stored>(philox::bfloat16(static_cast<float>(number)));
  } else {
    return static_cast<Stored>(number);
  }
}

template <class Stored>
FOREBAY_INLINE bool equal(Stored one, Stored other) {
  if constexpr (std::is_arithmetic_v<Stored>) {
    return one == other;
  } else {
    const uint32_t a = static_cast<uint16_t>(one), b = static_cast<uint16_t>(other);
    return (a == b) | !((a | b) & 0x7FFF);  // or both are zeros; branchless
  }
}

}  // namespace
}  // namespace forebay
