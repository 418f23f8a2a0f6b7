// Poisson numbers as in NVIDIA's cuRAND on a GPU: products of uniform numbers for rates below 64, rejection from an
// approximated gamma distribution up to 4000, a rounded normal number above. A GPU computes the logarithms,
// exponentials and roots in hardware, with an error of a few of the last bits, so that a number may rarely differ from
// its.
#pragma once

#include <cmath>
#include <cstdint>

#include "random/philox.hpp"

namespace forebay::philox {

// The words of one subsequence, one at a time.
class Sequence {
 public:
  Sequence(uint64_t seed, uint64_t subsequence, uint64_t draw) : seed_(seed), subsequence_(subsequence), draw_(draw) {}

  Words next_words() { return words(seed_, subsequence_, draw_++); }

  float next_uniform() {
    if (used_ == 4) {
      const Words drawn = next_words();
      current_[0] = drawn.x, current_[1] = drawn.y, current_[2] = drawn.z, current_[3] = drawn.w;
      used_ = 0;
    }
    return uniform(current_[used_++]);
  }

 private:
  uint64_t seed_, subsequence_, draw_;
  uint32_t current_[4] = {};
  unsigned used_ = 4;
};

// The regularised incomplete gamma function of a shape, approximated by 1 / (1 + e^(slope (shape - x) - shift))^2.
struct GammaCurve {
  float shape, slope, shift;

  explicit GammaCurve(float a)
      : shape(a),
        slope(fused(1.43248035075540910f, inverse_root(a - 0.12400979329415655f), 0.00025361074907033f)),
        shift(fused(0.21096734870196546f, inverse_root(a - 1.97381164089999420f), 0.94201734077887530f)) {}

  float at(float x) const {
    const float t = 1.0f + static_cast<float>(exp(static_cast<double>(fused(slope, shape - x, -shift))));
    return 1.0f / (t * t);
  }

  float inverse(float y) const {
    const float t = inverse_root(y) - 1.0f;
    const float logarithm = t > 0 ? static_cast<float>(log(static_cast<double>(t))) : -INFINITY;
    return fused(-(shift + logarithm), 1.0f / slope, shape);
  }

  static float inverse_root(float x) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(x))); }
};

// log((a - 1)!), by Stirling's series for large numbers; infinite for negative ones, and 0 for 0 as in cuRAND.
inline double log_factorial_below(int32_t a) {
  if (a < 0) return INFINITY;
  if (a <= 8) {
    double product = 1;
    for (int32_t i = 2; i < a; ++i) product *= i;
    return log(product);
  }
  const double x = a, inverse = 1 / x;
  const double series = polynomial(inverse * inverse, 1.0 / 1188, -1.0 / 1680, 1.0 / 1260, -1.0 / 360, 1.0 / 12);
  return (x - 0.5) * log(x) - x + 0.91893853320467274 + series * inverse;
}

inline uint32_t poisson_by_products(Sequence& numbers, float rate) {
  float product = static_cast<float>(exp(static_cast<double>(rate)));
  uint32_t count = 0;
  while ((product *= numbers.next_uniform()) > 1.0f) ++count;
  return count;
}

inline uint32_t poisson_by_rejection(Sequence& numbers, float rate) {
  const GammaCurve gamma(rate);
  const float log_rate = static_cast<float>(log(static_cast<double>(rate)));
  for (;;) {
    const float x = std::floor(gamma.inverse(numbers.next_uniform()));
    const float width = (gamma.at(x + 1.0f) - gamma.at(x)) * 1.3f;
    const float height = numbers.next_uniform() * width;
    if (!(width >= 1e-20)) continue;
    const float factorial = static_cast<float>(log_factorial_below(static_cast<int32_t>(1.0f + x)));
    const float probability = static_cast<float>(exp(static_cast<double>(fused(x, log_rate, -rate) - factorial)));
    if (height < probability) return x > 0 ? static_cast<uint32_t>(x) : 0;
  }
}

inline uint32_t poisson(Sequence& numbers, double rate) {
  if (rate < 64) return poisson_by_products(numbers, static_cast<float>(rate));
  if (rate <= 4000) return poisson_by_rejection(numbers, static_cast<float>(rate));
  const double number = fused(__builtin_sqrt(rate), normal(numbers.next_words()).x, rate) + 0.5;
  return !(number > 0) ? 0 : number < 0x1p32 ? static_cast<uint32_t>(number) : ~0u;
}

}  // namespace forebay::philox
