// Conversion of one element to another type, with the results of NumPy's casts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "random/philox.hpp"  // bits, float16, bfloat16

namespace forebay::convert {

enum class Bool : uint8_t {};  // any value but 0 is true
enum class Float16 : uint16_t {};
enum class BFloat16 : uint16_t {};

template <class Part>
struct Complex {
  using Real = Part;
  Part real, imaginary;
};

template <class T, class = void>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<T, std::void_t<typename T::Real>> : std::true_type {};

// ---- Widening: 16-bit floats become floats, exactly

template <class T>
FOREBAY_INLINE T wide(T value) {
  return value;
}

FOREBAY_INLINE uint8_t wide(Bool value) { return std::min<uint8_t>(static_cast<uint8_t>(value), 1); }

FOREBAY_INLINE float wide(BFloat16 value) { return philox::bits<float>(uint32_t{static_cast<uint16_t>(value)} << 16); }

FOREBAY_INLINE float wide(Float16 value) {
  const uint32_t raw = static_cast<uint16_t>(value), size = (raw & 0x7FFF) << 13;
  const uint32_t scaled = philox::bits<uint32_t>(philox::bits<float>(size) * 0x1p112f);  // of a larger exponent bias
  return philox::bits<float>(scaled | (size >= 0x0F800000 ? 0x7F800000 : 0) | (raw & 0x8000) << 16);
}

// ---- Narrowing

// Rounds to odd: rounding the result again, to fewer digits, is like rounding `value` once.
FOREBAY_INLINE float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const bool above = __builtin_fabs(back) > __builtin_fabs(value), inexact = (back > value) | (back < value);
  return philox::bits<float>((philox::bits<uint32_t>(nearest) - above) | inexact);
}

template <class T>
FOREBAY_INLINE float for_float16(T value) {
  if constexpr (std::is_same_v<T, double>) return round_to_odd(value);
  return static_cast<float>(value);
}

// A number that the integer type cannot represent becomes what the processor makes of it, as in NumPy and PyTorch.
// Conversions are by way of the integer type whose vector instructions agree with the scalar ones.
template <class Integer, class Real>
FOREBAY_INLINE Integer integer_of(Real value) {
  if constexpr (std::is_same_v<Integer, uint64_t>) {
    const bool high = value >= Real(0x1p63);
    const int64_t low = static_cast<int64_t>(high ? value - Real(0x1p63) : value);
    return static_cast<uint64_t>(low) ^ uint64_t { high } << 63;
  } else if constexpr (std::is_same_v<Integer, uint32_t>) {
    return static_cast<uint32_t>(static_cast<int64_t>(value));
  } else if constexpr (sizeof(Integer) <= sizeof(int32_t)) {
    return static_cast<Integer>(static_cast<int32_t>(value));
  } else {
    return static_cast<Integer>(value);
  }
}

// ---- Conversion

template <class To, class From>
FOREBAY_INLINE To element(From from) {
  if constexpr (std::is_same_v<To, From>) {
    return from;
  } else if constexpr (IsComplex<From>::value) {
    if constexpr (IsComplex<To>::value) {
      return {element<typename To::Real>(from.real), element<typename To::Real>(from.imaginary)};
    } else if constexpr (std::is_same_v<To, Bool>) {
      return static_cast<Bool>((from.real != 0) | (from.imaginary != 0));
    } else {
      return element<To>(from.real);
    }
  } else if constexpr (IsComplex<To>::value) {
    return {element<typename To::Real>(from), 0};
  } else {
    const auto value = wide(from);
    if constexpr (std::is_same_v<To, Bool>) {
      return static_cast<Bool>(value != 0);
    } else if constexpr (std::is_same_v<To, Float16>) {
      return static_cast<Float16>(philox::float16(for_float16(value)));
    } else if constexpr (std::is_same_v<To, BFloat16>) {
      return static_cast<BFloat16>(philox::bfloat16(static_cast<float>(value)));
    } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<decltype(value)>) {
      return integer_of<To>(value);
    } else {
      return static_cast<To>(value);
    }
  }
}

}  // namespace forebay::convert
