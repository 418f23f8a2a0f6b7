// Kernel of draw.cpp, which includes this file once per instruction set (hence no #pragma once), with LEVEL as its
// namespace and, for vector units, BYTES (the vector size) and MULTIPLY (the product of the low halves of 64-bit
// lanes).

#include "random/conversions.hpp"

namespace forebay::LEVEL {

// ---- Storing the numbers

template <class Stored>
struct Destination {
  const Draw& draw;
  const Axis* axes;
  bool contiguous;
  bool aligned;  // contiguous and aligned to the element size

  Destination(const Draw& d, const Axis* a)
      : draw(d),
        axes(a),
        contiguous(!d.axes || (d.axes == 1 && a->step == static_cast<int64_t>(sizeof(Stored)))),
        aligned(contiguous && d.address % alignof(Stored) == 0) {}

  Stored* at(uint64_t element) const { return reinterpret_cast<Stored*>(draw.address + element * sizeof(Stored)); }

  void put(uint64_t element, const Stored* numbers, uint64_t count) const {
    if (contiguous) {
      std::memcpy(reinterpret_cast<void*>(draw.address + element * sizeof(Stored)), numbers, count * sizeof(Stored));
      return;
    }
    while (count) {  // one run along the fastest axis per iteration
      uint64_t left = element, address = draw.address + left % axes->length * axes->step;
      const uint64_t run = std::min(axes->length - left % axes->length, count);
      for (const Axis* axis = axes; axis < axes + draw.axes; left /= axis++->length) {
        if (axis > axes) address += left % axis->length * axis->step;
      }
      for (uint64_t i = 0; i < run; ++i, address += axes->step) {
        std::memcpy(reinterpret_cast<void*>(address), numbers + i, sizeof(Stored));
      }
      element += run, numbers += run, count -= run;
    }
  }
};

// Element `thread + threads * (kPerCall * call + row)` gets the number `row` of that thread and call.
template <class Stored, class Make>
void fill(const Draw& draw, const Axis* axes) {
  constexpr uint32_t kPerCall = Make::kPerCall;
  const Destination<Stored> destination(draw, axes);
  const Make make(draw);
  Tile tile;
  alignas(64) Stored buffer[kPerCall][kWidth];
  for (uint64_t call = 0, start = 0; start < draw.count; ++call, start += draw.threads * kPerCall) {
    for (uint64_t thread = 0; thread < draw.threads && start + thread < draw.count; thread += kWidth) {
      Stored* rows[kPerCall];
      uint64_t first[kPerCall], counts[kPerCall];
      uint32_t lanes = 0;
      for (uint32_t lane = 0; lane < kPerCall; ++lane) {
        first[lane] = start + thread + draw.threads * lane;
        counts[lane] = first[lane] < draw.count ? std::min<uint64_t>(draw.count - first[lane], kWidth) : 0;
        lanes += counts[lane] > 0;
        rows[lane] = destination.aligned && counts[lane] == kWidth ? destination.at(first[lane]) : buffer[lane];
      }
      draw_words(tile, draw.seed, thread, draw.offset / 4 + call);
      make(tile, lanes, rows);
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        if (rows[lane] == buffer[lane]) destination.put(first[lane], buffer[lane], counts[lane]);
      }
    }
  }
}

// Each thread fills four adjacent elements, each with its own probability.
template <class Stored>
int fill_bernoulli_tensor(const Draw& draw, const Axis* axes) {
  const Destination<Stored> destination(draw, axes);
  const auto* probabilities = reinterpret_cast<const RealOf<Stored>*>(draw.probabilities);
  const Stored no = store<Stored>(0.0f), yes = store<Stored>(1.0f);
  Tile tile;
  Stored buffer[4 * kWidth];
  bool valid = true;
  for (uint64_t start = 0; start < draw.count; start += 4 * kWidth) {
    draw_words(tile, draw.seed, start / 4, draw.offset / 4);
    const uint64_t count = std::min<uint64_t>(draw.count - start, 4 * kWidth);
    for (uint64_t i = 0; i < count; ++i) {
      const auto probability = probabilities[start + i];
      valid = valid && probability >= 0 && probability <= 1;
      buffer[i] = uniform(tile.words[i % 4][i / 4]) <= probability ? yes : no;
    }
    destination.put(start, buffer, count);
  }
  return valid ? 0 : kAssertFailed;
}

// Each thread fills one element, from as many numbers as it takes.
template <class Stored>
int fill_poisson(const Draw& draw, const Axis* axes) {
  const Destination<Stored> destination(draw, axes);
  const auto* rates = reinterpret_cast<const RealOf<Stored>*>(draw.probabilities);
  Stored buffer[kWidth];
  bool valid = true;
  for (uint64_t start = 0; start < draw.count; start += kWidth) {
    const uint64_t count = std::min<uint64_t>(draw.count - start, kWidth);
    for (uint64_t i = 0; i < count; ++i) {
      const double rate = rates[start + i];
      Sequence numbers(draw.seed, start + i, draw.offset / 4);
      valid = valid && rate >= 0;
      buffer[i] = store<Stored>(static_cast<RealOf<Stored>>(rate >= 0 ? poisson(numbers, rate) : 0));
    }
    destination.put(start, buffer, count);
  }
  return valid ? 0 : kAssertFailed;
}

template <class Stored>
int run_any(const Draw& draw, const Axis* axes) {
  switch (draw.distribution) {
    case Distribution::Bernoulli:
      return fill<Stored, DrawBernoulli<Stored>>(draw, axes), 0;
    case Distribution::BernoulliTensor:
      return fill_bernoulli_tensor<Stored>(draw, axes);
    case Distribution::Integers:
      if (draw.is_64bit) return fill<Stored, Draw64BitIntegers<Stored>>(draw, axes), 0;
      return fill<Stored, DrawIntegers<Stored>>(draw, axes), 0;
    case Distribution::Geometric:
      return fill<Stored, DrawGeometric<Stored>>(draw, axes), 0;
    default:
      return EINVAL;
  }
}

template <class Stored>
int run_real(const Draw& draw, const Axis* axes) {
  switch (draw.distribution) {
    case Distribution::Uniform:
      if (draw.a == 0 && draw.b == 1) return fill<Stored, DrawUnit<Stored>>(draw, axes), 0;
      return fill<Stored, DrawUniform<Stored>>(draw, axes), 0;
    case Distribution::Normal:
      return fill<Stored, DrawNormal<Stored>>(draw, axes), 0;
    case Distribution::Exponential:
      return fill<Stored, DrawExponential<Stored>>(draw, axes), 0;
    case Distribution::LogNormal:
      return fill<Stored, DrawLogNormal<Stored>>(draw, axes), 0;
    case Distribution::Cauchy:
      return fill<Stored, DrawCauchy<Stored>>(draw, axes), 0;
    case Distribution::Poisson:
      return fill_poisson<Stored>(draw, axes);
    default:
      return run_any<Stored>(draw, axes);
  }
}

int run(const Draw& draw, const Axis* axes) {
  switch (draw.element) {
    case Element::Bool:
      return run_any<bool>(draw, axes);
    case Element::U8:
      return run_any<uint8_t>(draw, axes);
    case Element::I8:
      return run_any<int8_t>(draw, axes);
    case Element::U16:
      return run_any<uint16_t>(draw, axes);
    case Element::I16:
      return run_any<int16_t>(draw, axes);
    case Element::U32:
      return run_any<uint32_t>(draw, axes);
    case Element::I32:
      return run_any<int32_t>(draw, axes);
    case Element::U64:
      return run_any<uint64_t>(draw, axes);
    case Element::I64:
      return run_any<int64_t>(draw, axes);
    case Element::F16:
      return run_real<Float16>(draw, axes);
    case Element::BF16:
      return run_real<BFloat16>(draw, axes);
    case Element::F32:
      return run_real<float>(draw, axes);
    case Element::F64:
      return run_real<double>(draw, axes);
  }
  return EINVAL;
}

}  // namespace forebay::LEVEL
