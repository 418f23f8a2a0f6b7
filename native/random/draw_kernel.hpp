// Kernel of draw.cpp, which includes this file once per instruction set (hence no #pragma once), with LEVEL as its
// namespace and, for vector units, BYTES (the vector size) and MULTIPLY (the product of the low halves of 64-bit
// lanes). The CUDA backend compiles it with NVRTC, too: every thread then computes the numbers of one GPU thread.

#include "random/conversions.hpp"

namespace forebay::LEVEL {

// The part of a fill that one caller computes: every `step`-th tile of kWidth threads from tile `first` on.
struct Part {
  uint64_t first, step;
};

// ---- Storing the numbers

template <class Stored>
void put_one(Stored* at, const Stored* number) {
#ifdef __CUDACC__
  if (reinterpret_cast<uintptr_t>(at) % sizeof(Stored) == 0) {  // else a GPU writes single bytes
    *at = *number;
    return;
  }
#endif
  std::memcpy(static_cast<void*>(at), number, sizeof(Stored));
}

// Returns the distance in bytes of an element from the first one.
FOREBAY_OUTLINED inline uint64_t offset_of(const Axis* axes, uint32_t count, uint64_t element) {
  uint64_t offset = 0;
  for (const Axis* axis = axes; axis < axes + count; element /= axis++->length) {
    offset += element % axis->length * static_cast<uint64_t>(axis->step);
  }
  return offset;
}

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
    if (kWidth == 1) {
      for (uint64_t i = 0; i < count; ++i) {
        put_one(contiguous ? at(element + i) : at_offset(offset_of(axes, draw.axes, element + i)), numbers + i);
      }
      return;
    }
    if (contiguous) {
      std::memcpy(at(element), numbers, count * sizeof(Stored));
      return;
    }
    while (count) {  // one run along the fastest axis per iteration
      uint64_t offset = offset_of(axes, draw.axes, element);
      const uint64_t run = std::min(axes->length - element % axes->length, count);
      for (uint64_t i = 0; i < run; ++i, offset += axes->step) put_one(at_offset(offset), numbers + i);
      element += run, numbers += run, count -= run;
    }
  }

 private:
  Stored* at_offset(uint64_t offset) const { return reinterpret_cast<Stored*>(draw.address + offset); }
};

// Element `thread + threads * (kPerCall * call + row)` gets the number `row` of that thread and call.
template <class Stored, class Make>
void fill(const Draw& draw, const Axis* axes, Part part) {
  constexpr uint32_t kPerCall = Make::kPerCall;
  const Destination<Stored> destination(draw, axes);
  const Make make(draw);
  Tile tile;
  alignas(64) Stored buffer[kPerCall][kWidth];
  for (uint64_t call = 0, start = 0; start < draw.count; ++call, start += draw.threads * kPerCall) {
    for (uint64_t thread = part.first * kWidth; thread < draw.threads && start + thread < draw.count;
         thread += part.step * kWidth) {
      Stored* rows[kPerCall];
      uint64_t first[kPerCall], counts[kPerCall];
      uint32_t lanes = 0;
      for (uint32_t lane = 0; lane < kPerCall; ++lane) {
        first[lane] = start + thread + draw.threads * lane;
        counts[lane] = first[lane] < draw.count ? std::min<uint64_t>(draw.count - first[lane], kWidth) : 0;
        lanes += counts[lane] > 0;
        const bool direct = kWidth > 1 && destination.aligned && counts[lane] == kWidth;
        rows[lane] = direct ? destination.at(first[lane]) : buffer[lane];
      }
      draw_words(tile, draw.seed, thread, draw.offset / 4 + call);
      make(tile, kWidth == 1 ? kPerCall : lanes, rows);  // a constant, so that a GPU keeps the numbers in registers
      for (uint32_t lane = 0; lane < (kWidth == 1 ? kPerCall : lanes); ++lane) {
        if (rows[lane] == buffer[lane]) destination.put(first[lane], buffer[lane], counts[lane]);
      }
    }
  }
}

// Each thread fills four adjacent elements, each with its own probability.
template <class Stored>
int fill_bernoulli_tensor(const Draw& draw, const Axis* axes, Part part) {
  const Destination<Stored> destination(draw, axes);
  const auto* probabilities = reinterpret_cast<const RealOf<Stored>*>(draw.probabilities);
  const Stored no = store<Stored>(0.0f), yes = store<Stored>(1.0f);
  Tile tile;
  Stored buffer[4 * kWidth];
  bool valid = true;
  for (uint64_t start = part.first * 4 * kWidth; start < draw.count; start += part.step * 4 * kWidth) {
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
int fill_poisson(const Draw& draw, const Axis* axes, Part part) {
  const Destination<Stored> destination(draw, axes);
  const auto* rates = reinterpret_cast<const RealOf<Stored>*>(draw.probabilities);
  Stored buffer[kWidth];
  bool valid = true;
  for (uint64_t start = part.first * kWidth; start < draw.count; start += part.step * kWidth) {
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

template <class Stored, Distribution kDistribution>
int run_one(const Draw& draw, const Axis* axes, Part part) {
  if constexpr (kDistribution == Distribution::Uniform) {
    if (draw.a == 0 && draw.b == 1) return fill<Stored, DrawUnit<Stored>>(draw, axes, part), 0;
    return fill<Stored, DrawUniform<Stored>>(draw, axes, part), 0;
  } else if constexpr (kDistribution == Distribution::Normal) {
    return fill<Stored, DrawNormal<Stored>>(draw, axes, part), 0;
  } else if constexpr (kDistribution == Distribution::Exponential) {
    return fill<Stored, DrawExponential<Stored>>(draw, axes, part), 0;
  } else if constexpr (kDistribution == Distribution::Bernoulli) {
    return fill<Stored, DrawBernoulli<Stored>>(draw, axes, part), 0;
  } else if constexpr (kDistribution == Distribution::Integers) {
    if (draw.is_64bit) return fill<Stored, Draw64BitIntegers<Stored>>(draw, axes, part), 0;
    return fill<Stored, DrawIntegers<Stored>>(draw, axes, part), 0;
  } else if constexpr (kDistribution == Distribution::BernoulliTensor) {
    return fill_bernoulli_tensor<Stored>(draw, axes, part);
  } else if constexpr (kDistribution == Distribution::Cauchy) {
    return fill<Stored, DrawCauchy<Stored>>(draw, axes, part), 0;
  } else if constexpr (kDistribution == Distribution::LogNormal) {
    return fill<Stored, DrawLogNormal<Stored>>(draw, axes, part), 0;
  } else if constexpr (kDistribution == Distribution::Geometric) {
    return fill<Stored, DrawGeometric<Stored>>(draw, axes, part), 0;
  } else {
    static_assert(kDistribution == Distribution::Poisson);
    return fill_poisson<Stored>(draw, axes, part);
  }
}

#ifndef __CUDACC__
#define RUN(distribution)          \
  case Distribution::distribution: \
    return run_one<Stored, Distribution::distribution>(draw, axes, {0, 1})

template <class Stored>
int run_any(const Draw& draw, const Axis* axes) {
  switch (draw.distribution) {
    RUN(Bernoulli);
    RUN(BernoulliTensor);
    RUN(Integers);
    RUN(Geometric);
    default:
      return EINVAL;
  }
}

template <class Stored>
int run_real(const Draw& draw, const Axis* axes) {
  switch (draw.distribution) {
    RUN(Uniform);
    RUN(Normal);
    RUN(Exponential);
    RUN(LogNormal);
    RUN(Cauchy);
    RUN(Poisson);
    default:
      return run_any<Stored>(draw, axes);
  }
}
#undef RUN

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

#endif

}  // namespace forebay::LEVEL
