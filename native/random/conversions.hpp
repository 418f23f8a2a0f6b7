// Words of many threads at once, and their conversion to the numbers of each distribution. Part of draw_kernel.hpp,
// which explains why there is no #pragma once.

namespace forebay::LEVEL {

using namespace philox;

#ifdef __CUDACC__
constexpr uint32_t kWidth = 1;
#else
constexpr uint32_t kWidth = 256;  // GPU threads that are computed together
#endif

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
struct DrawLogNormal : PerCallOf<Stored> {
  DrawNormal<RealOf<Stored>> normals;  // PyTorch takes the exponential before it rounds to 16 bits
  explicit DrawLogNormal(const Draw& d) : normals(d) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    using Real = RealOf<Stored>;
    alignas(64) Real drawn[PerCallOf<Stored>::kPerCall][kWidth];
    Real* targets[PerCallOf<Stored>::kPerCall];
    for (uint32_t lane = 0; lane < PerCallOf<Stored>::kPerCall; ++lane) targets[lane] = drawn[lane];
    normals(tile, lanes, targets);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      for (uint32_t i = 0; i < kWidth; ++i) {
        rows[lane][i] = store<Stored>(static_cast<Real>(exp(static_cast<double>(drawn[lane][i]))));
      }
    }
  }
};

template <class Stored>
struct DrawCauchy : PerCallOf<Stored> {
  using Real = RealOf<Stored>;
  Real median, scale;
  explicit DrawCauchy(const Draw& d) : median(d.a), scale(d.b) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    for_each_uniform<Real>(tile, lanes, [=](uint32_t lane, uint32_t i, Real u) {
      rows[lane][i] = store<Stored>(cauchy(u, median, scale));
    });
  }
};

// The failures before the first success, and that success: log(u) / log(1 - probability), rounded up. The logarithms
// are those of philox.hpp, as libraries differ in the last bit.
template <class Stored>
struct DrawGeometric : PerCallOf<Stored> {
  using Real = RealOf<Stored>;
  Real log_failure;
  explicit DrawGeometric(const Draw& d)
      : log_failure(sizeof(Real) == 8 ? Real(log_of_rest(d.a)) : Real(log_or_infinity(double(Real(1) - Real(d.a))))) {}
  FOREBAY_INLINE void operator()(const Tile& tile, uint32_t lanes, Stored* const* rows) const {
    for_each_uniform<Real>(tile, lanes, [=](uint32_t lane, uint32_t i, Real u) {
      const Real number = std::ceil(philox::log(u) / log_failure);
      if constexpr (std::is_integral_v<Stored>) {
        rows[lane][i] = static_cast<Stored>(static_cast<int64_t>(number));
      } else {
        rows[lane][i] = store<Stored>(number);
      }
    });
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

}  // namespace forebay::LEVEL
