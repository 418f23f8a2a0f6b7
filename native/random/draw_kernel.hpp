// Kernel of draw.cpp, which includes this file once per instruction set (hence no #pragma once), with LEVEL as its
// namespace and, for vector units, BYTES (the vector size) and MULTIPLY (the product of the low halves of 64-bit
// lanes).

namespace forebay::LEVEL {

using namespace philox;

constexpr uint32_t kWidth = 256;  // GPU threads that are computed together

struct alignas(64) Tile {
  uint32_t words[4][kWidth];
};

#ifdef BYTES
// Each word occupies a 64-bit lane, as its product needs; only the results of two neighbouring threads share a lane.
inline void draw_words(Tile& tile, uint64_t seed, uint64_t first, uint64_t number) {
  typedef uint64_t Lanes __attribute__((vector_size(BYTES), may_alias));
  constexpr uint32_t kLanes = BYTES / 8;
  Lanes even, k[10], l[10];
  for (uint32_t i = 0; i < kLanes; ++i) even[i] = 2 * i;
  uint32_t key = static_cast<uint32_t>(seed), other = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, key += 0x9E3779B9, other += 0xBB67AE85) {
    k[round] = Lanes{} + key;
    l[round] = Lanes{} + other;
  }
  const Lanes low = Lanes{} + 0xFFFFFFFF, m = Lanes{} + 0xD2511F53, n = Lanes{} + 0xCD9E8D57;
  for (uint32_t i = 0; i < kWidth; i += 2 * kLanes) {
    Lanes a[2], b[2], c[2], d[2];
    for (int h = 0; h < 2; ++h) {
      a[h] = Lanes{} + (number & 0xFFFFFFFF);
      b[h] = Lanes{} + (number >> 32);
      c[h] = even + ((first & 0xFFFFFFFF) + i + h);
      d[h] = Lanes{} + (first >> 32);
    }
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const Lanes p = (Lanes)MULTIPLY(a[h], m), q = (Lanes)MULTIPLY(c[h], n);
        a[h] = (q >> 32) ^ b[h] ^ k[round];
        b[h] = q;
        c[h] = (p >> 32) ^ d[h] ^ l[round];
        d[h] = p;
      }
    }
    const Lanes* const drawn[4] = {a, b, c, d};
    for (int word = 0; word < 4; ++word) {
      *reinterpret_cast<Lanes*>(&tile.words[word][i]) = (drawn[word][0] & low) | (drawn[word][1] << 32);
    }
  }
}
#else
inline void draw_words(Tile& tile, uint64_t seed, uint64_t first, uint64_t number) {
  for (uint32_t i = 0; i < kWidth; ++i) {
    const Words drawn = words(seed, first + i, number);
    tile.words[0][i] = drawn.x;
    tile.words[1][i] = drawn.y;
    tile.words[2][i] = drawn.z;
    tile.words[3][i] = drawn.w;
  }
}
#endif

// ---- Conversion of words: `rows` rows of kWidth numbers, up to kPerCall

// Numbers that one Philox call yields per thread.
struct TwoPerCall {
  static constexpr uint32_t kPerCall = 2;
};
struct FourPerCall {
  static constexpr uint32_t kPerCall = 4;
};

// Calls `make(row, i, uniform)`: a float is made of one word, a double of two.
template <class Real, class Make>
FOREBAY_INLINE void for_each_uniform(const Tile& tile, uint32_t lanes, Make make) {
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    for (uint32_t i = 0; i < kWidth; ++i) {
      if constexpr (sizeof(Real) == 8) {
        make(lane, i, uniform(tile.words[2 * lane][i], tile.words[2 * lane + 1][i]));
      } else {
        make(lane, i, uniform(tile.words[lane][i]));
      }
    }
  }
}

template <class Stored>
using RealOf = std::conditional_t<std::is_same_v<Stored, double>, double, float>;
template <class Stored>
using PerCallOf = std::conditional_t<std::is_same_v<Stored, double>, TwoPerCall, FourPerCall>;

template <class Stored>
struct DrawUniform : PerCallOf<Stored> {
  using Real = RealOf<Stored>;
  Real from, range;
  Stored low, high;
  explicit DrawUniform(const Draw& d)
      : from(d.a), range(d.c), low(store<Stored>(from)), high(store<Stored>(Real(d.b))) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    for_each_uniform<Real>(tile, lanes, [=](uint32_t lane, uint32_t i, Real u) {
      const Stored value = store<Stored>(fused(u, range, from));
      rows[lane][i] = equal(value, high) ? low : value;
    });
  }
};

// Uniform from 0 to 1: needs no fused multiply-add, so it is fast on processors without one, too.
template <class Stored>
struct DrawUnit : PerCallOf<Stored> {
  explicit DrawUnit(const Draw&) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    using Real = RealOf<Stored>;
    const Stored zero = store<Stored>(Real(0)), one = store<Stored>(Real(1));
    for_each_uniform<Real>(tile, lanes, [=](uint32_t lane, uint32_t i, Real u) {
      const Stored value = store<Stored>(u);
      rows[lane][i] = equal(value, one) ? zero : value;
    });
  }
};

template <class Stored>
struct DrawNormal : PerCallOf<Stored> {
  using Real = RealOf<Stored>;
  Real mean, deviation;
  explicit DrawNormal(const Draw& d) : mean(d.a), deviation(d.b) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    for (uint32_t lane = 0; lane < lanes; lane += 2) {
      Stored *const first = rows[lane], *const second = rows[lane + 1];
      for (uint32_t i = 0; i < kWidth; ++i) {
        const auto& w = tile.words;
        Pair<Real> drawn;
        if constexpr (sizeof(Real) == 8) {
          drawn = normal(Words{w[0][i], w[1][i], w[2][i], w[3][i]});
        } else {
          drawn = normal(w[lane][i], w[lane + 1][i]);
        }
        first[i] = store<Stored>(fused(drawn.x, deviation, mean));
        second[i] = store<Stored>(fused(drawn.y, deviation, mean));
      }
    }
  }
};

template <class Stored>
struct DrawExponential : PerCallOf<Stored> {
  using Real = RealOf<Stored>;
  Real rate;
  explicit DrawExponential(const Draw& d) : rate(d.a) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    for_each_uniform<Real>(
        tile, lanes, [=](uint32_t lane, uint32_t i, Real u) { rows[lane][i] = store<Stored>(exponential(u, rate)); });
  }
};

template <class Stored>
struct DrawBernoulli : PerCallOf<Stored> {
  using Real = RealOf<Stored>;
  Real probability;
  explicit DrawBernoulli(const Draw& d) : probability(d.a) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    const Stored no = store<Stored>(Real(0)), yes = store<Stored>(Real(1));
    for_each_uniform<Real>(tile, lanes,
                           [=](uint32_t lane, uint32_t i, Real u) { rows[lane][i] = u < probability ? yes : no; });
  }
};

template <class Stored>
struct DrawIntegers : FourPerCall {
  uint32_t range;
  uint64_t inverse, base;
  explicit DrawIntegers(const Draw& d)
      : range(static_cast<uint32_t>(d.range)), inverse(~uint64_t{0} / d.range + 1), base(d.base) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      for (uint32_t i = 0; i < kWidth; ++i) {
        rows[lane][i] = store<Stored>(static_cast<int64_t>(remainder(tile.words[lane][i], range, inverse) + base));
      }
    }
  }
};

template <class Stored>
struct Draw64BitIntegers : TwoPerCall {
  uint64_t range, base;
  explicit Draw64BitIntegers(const Draw& d) : range(d.range), base(d.base) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      for (uint32_t i = 0; i < kWidth; ++i) {
        const uint64_t drawn = wide(tile.words[2 * lane][i], tile.words[2 * lane + 1][i]);
        rows[lane][i] = store<Stored>(static_cast<int64_t>((range ? drawn % range : drawn) + base));
      }
    }
  }
};

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
