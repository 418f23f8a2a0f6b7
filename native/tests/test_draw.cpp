// Tests of Philox against known answers, of cuRAND's conversions, and of random fills on every instruction set.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "queue/worker.hpp"
#include "random/draw.hpp"
#include "random/philox.hpp"
#include "random/poisson.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

std::array<uint32_t, 4> words(uint64_t seed, uint64_t subsequence, uint64_t number) {
  const philox::Words w = philox::words(seed, subsequence, number);
  return {w.x, w.y, w.z, w.w};
}

constexpr size_t kSizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};  // by Element

Draw example_draw(Distribution distribution, Element element, uint64_t count) {
  Draw d{};
  d.distribution = distribution;
  d.element = element;
  d.count = count;
  d.seed = 0x123456789ABCDEFull;
  d.offset = 4 * 0xFFFFFFFFull;  // the next call carries into the high word
  d.threads = 512;
  d.a = distribution == Distribution::Bernoulli || distribution == Distribution::Geometric ? 0.25 : 1.5;
  d.b = 3;
  d.c = 1.5;
  d.range = 1000;
  d.base = -7;
  return d;
}

std::vector<char> run_draw(Draw d, const std::vector<Axis>& axes, size_t nbytes, Level level) {
  std::vector<char> memory(nbytes, 'x');
  d.address = reinterpret_cast<uint64_t>(memory.data());
  d.axes = static_cast<uint8_t>(axes.size());
  CHECK(draw(d, axes.data(), level) == 0);
  return memory;
}

std::vector<char> pack(const Draw& d, const std::vector<Axis>& axes = {}) {
  std::vector<char> bytes(sizeof d + axes.size() * sizeof(Axis));
  std::memcpy(bytes.data(), &d, sizeof d);
  if (!axes.empty()) std::memcpy(bytes.data() + sizeof d, axes.data(), axes.size() * sizeof(Axis));
  return bytes;
}

}  // namespace

TEST(philox_matches_random123_vectors) {
  const uint64_t all = ~uint64_t{0};
  CHECK((words(0, 0, 0) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((words(all, all, all) == std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((words(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) ==
         std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(uniform_numbers_are_in_half_open_interval) {
  CHECK(philox::uniform(0) == 0x1p-33f);
  CHECK(philox::uniform(~0u) == 1.0f);
  CHECK(philox::uniform(0x80000000u) == 0.5f);
  CHECK(philox::uniform(0, 0) == 0x1p-54);
  CHECK(philox::uniform(~0u, ~0u) <= 1.0);
  CHECK(philox::uniform(0, 1) == 0x1p-32 + 0x1p-54);
}

TEST(logarithms_and_normal_numbers_are_accurate) {
  for (uint32_t i = 0; i < 200'000; ++i) {
    const philox::Words w = philox::words(1, i, 0);
    const float u = philox::uniform(i % 3 ? w.x : w.x >> (w.y % 32));
    const double expected = std::log(static_cast<double>(u));
    CHECK(std::abs(philox::log(u) - expected) <= 1.2e-7 * std::abs(expected) + 1e-12);
    const double v = philox::uniform(w.x, i % 3 ? w.y : w.y >> (w.z % 32));
    CHECK(std::abs(philox::log(v) - std::log(v)) <= 4.5e-16 * std::abs(std::log(v)) + 1e-17);
    const auto single = philox::normal(w.x, w.y);
    const double radius = std::sqrt(-2 * std::log(static_cast<double>(philox::uniform(w.x))));
    const float angle = std::fma(static_cast<float>(w.y), 2.3283064e-10f * 6.2831855f, 2.3283064e-10f * 6.2831855f / 2);
    CHECK(std::abs(single.x - radius * std::sin(static_cast<double>(angle))) <= 1e-6);
    CHECK(std::abs(single.y - radius * std::cos(static_cast<double>(angle))) <= 1e-6);
    const auto twice = philox::normal(w);
    const double far = std::sqrt(-2 * std::log(philox::uniform(w.x, w.y)));
    const double turns = static_cast<double>(w.z ^ (uint64_t{w.w} << 21)) * 0x1p-52 + 0x1p-53;
    CHECK(std::abs(twice.x - far * std::sin(turns * M_PI)) <= 1e-14);
    CHECK(std::abs(twice.y - far * std::cos(turns * M_PI)) <= 1e-14);
  }
  CHECK(philox::log(1.0f) == 0 && philox::log(1.0) == 0);
}

TEST(exponential_numbers_are_never_zero) {
  CHECK(philox::exponential(1.0f, 1.0f) == 0x1p-24f);
  CHECK(philox::exponential(1.0f - 0x1p-24f, 1.0f) == 0x1p-24f);
  CHECK(philox::exponential(1.0, 2.0) == 0x1p-54);
  CHECK(std::abs(philox::exponential(0.5f, 2.0f) - 0.34657359f) < 1e-7f);
}

TEST(exponentials_and_tangents_are_accurate) {
  for (uint32_t i = 0; i < 200'000; ++i) {
    const philox::Words w = philox::words(3, i, 0);
    const double x = (philox::uniform(w.x, w.y) - 0.5) * (i % 2 ? 1418.0 : 8.0), expected = std::exp(x);
    CHECK(std::abs(philox::exp(x) - expected) <= 4e-16 * expected + 1e-323);
    const double angle = (philox::uniform(w.z, w.w) - 0.5) * 3.141592653589793, tangent = std::tan(angle);
    CHECK(std::abs(philox::tan(angle) - tangent) <= 1e-15 * std::abs(tangent));
  }
  CHECK(philox::exp(0.0) == 1 && philox::exp(1e300) == INFINITY && philox::exp(-1e300) == 0);
  CHECK(philox::exp(INFINITY) == INFINITY && philox::exp(-INFINITY) == 0 && std::isnan(philox::exp(NAN)));
  CHECK(philox::tan(0.0) == 0);
}

TEST(cauchy_numbers_are_finite) {
  CHECK(philox::cauchy(0x1p-33f, 0.0f, 1.0f) < -2e6f && philox::cauchy(0x1p-33f, 0.0f, 1.0f) > -4e6f);
  CHECK(std::isfinite(philox::cauchy(1.0f, 0.0f, 1.0f)) && philox::cauchy(1.0f, 0.0f, 1.0f) > 2e6f);
  CHECK(philox::cauchy(0.5f, 3.0f, 2.0f) == 3 && philox::cauchy(0.5, 3.0, 2.0) == 3);
  CHECK(std::abs(philox::cauchy(0.75, 1.0, 2.0) - 3) < 1e-14);
}

// Mean and variance are within five standard errors of the rate.
TEST(poisson_numbers_have_their_distribution) {
  for (double rate : {0.0, 0.3, 5.0, 63.9, 64.0, 65.5, 300.0, 3999.0, 4000.0, 4001.0, 1e6}) {
    double sum = 0, squares = 0;
    constexpr int kCount = 20'000;
    for (int i = 0; i < kCount; ++i) {
      philox::Sequence numbers(9, i, 5);
      const double number = philox::poisson(numbers, rate);
      sum += number, squares += number * number;
    }
    const double mean = sum / kCount, variance = squares / kCount - mean * mean;
    CHECK(std::abs(mean - rate) <= 5 * std::sqrt(rate / kCount));
    CHECK(std::abs(variance - rate) <= 5 * std::sqrt((2 * rate * rate + rate) / kCount));
  }
  philox::Sequence numbers(9, 0, 5);
  const uint32_t infinite = philox::poisson(numbers, INFINITY);
  CHECK(infinite == ~0u || infinite == 0);
  CHECK(philox::poisson(numbers, 1e12) == ~0u);
}

TEST(sequences_continue_over_calls) {
  philox::Sequence numbers(7, 3, 11);
  for (uint64_t call = 11; call < 14; ++call) {
    const philox::Words w = philox::words(7, 3, call);
    for (uint32_t word : {w.x, w.y, w.z, w.w}) CHECK(numbers.next_uniform() == philox::uniform(word));
  }
}

TEST(factorials_are_accurate) {
  for (int32_t a = 0; a < 5000; ++a) {
    const double expected = a < 1 ? 0 : std::lgamma(static_cast<double>(a));
    CHECK(std::abs(philox::log_factorial_below(a) - expected) <= 1e-10 * (1 + expected));
  }
  CHECK(philox::log_factorial_below(-1) == INFINITY);
}

TEST(geometric_integers_are_the_floats) {
  Draw d = example_draw(Distribution::Geometric, Element::F32, 5000);
  d.a = 0.3;
  const auto bytes = run_draw(d, {}, 20000, best_level());
  const auto* floats = reinterpret_cast<const float*>(bytes.data());
  CHECK(std::all_of(floats, floats + 5000, [](float number) { return number >= 0 && number == std::floor(number); }));
  d.element = Element::U8;
  const auto integers = run_draw(d, {}, 5000, best_level());
  CHECK(std::equal(floats, floats + 5000, integers.begin(),
                   [](float number, char byte) { return number == static_cast<unsigned char>(byte); }));
}

TEST(float16_conversions_round_to_nearest) {
  const std::pair<float, uint16_t> halves[] = {
      {0.0f, 0},          {-0.0f, 0x8000},       {1.0f, 0x3C00},           {65504.0f, 0x7BFF},
      {65519.0f, 0x7BFF}, {65520.0f, 0x7C00},    {1e10f, 0x7C00},          {-1e10f, 0xFC00},
      {0x1p-24f, 1},      {0x1p-25f, 0},         {0x1.8p-24f, 2},          {0x1.000002p-25f, 1},
      {0x1p-14f, 0x0400}, {0x1.ff8p-15f, 0x3FF}, {1.00048828125f, 0x3C00}, {1.0014648f, 0x3C02},
      {INFINITY, 0x7C00}, {NAN, 0x7E00}};
  for (const auto& [value, half] : halves) CHECK(philox::float16(value) == half);
  CHECK(philox::bfloat16(1.0f) == 0x3F80 && philox::bfloat16(NAN) == 0x7FC0 && philox::bfloat16(-INFINITY) == 0xFF80);
  CHECK(philox::bfloat16(1.00390625f) == 0x3F80 && philox::bfloat16(1.01171875f) == 0x3F82);  // ties
}

TEST(remainder_equals_division) {
  for (uint32_t below : {1u, 2u, 3u, 10u, 1000u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu}) {
    for (uint32_t i = 0; i < 10'000; ++i) {
      const uint32_t x = i < 5 ? ~i : philox::words(2, i, below).x;
      CHECK(philox::remainder(x, below, ~uint64_t{0} / below + 1) == x % below);
    }
  }
}

TEST(all_instruction_sets_draw_the_same_numbers) {
  for (int distribution : {0, 1, 2, 3, 4, 6, 7, 8}) {
    for (int element = 0; element < 13; ++element) {
      const bool real = distribution < 3 || distribution == 6 || distribution == 7;
      if (real && element < 9) continue;
      Draw d = example_draw(static_cast<Distribution>(distribution), static_cast<Element>(element), 5000);
      for (int variant = 0; variant < 2; ++variant) {
        d.is_64bit = static_cast<uint8_t>(variant);
        if (variant && d.distribution == Distribution::Uniform) d.a = 0, d.b = d.c = 1;
        const size_t nbytes = 5000 * kSizes[element];
        const auto plain = run_draw(d, {}, nbytes, Level::Portable);
        CHECK(plain == run_draw(d, {}, nbytes, Level::Avx2));
        CHECK(plain == run_draw(d, {}, nbytes, Level::Avx512));
      }
    }
  }
}

TEST(elements_depend_on_their_index_only) {
  const Draw d = example_draw(Distribution::Uniform, Element::F32, 5000);
  const auto all = run_draw(d, {}, 20000, best_level());
  for (uint64_t count : {1, 255, 256, 257, 511, 512, 513, 2048, 2049, 4999}) {
    Draw fewer = d;
    fewer.count = count;
    auto part = run_draw(fewer, {}, 20000, best_level());
    CHECK(std::equal(all.begin(), all.begin() + count * 4, part.begin()));
    CHECK(std::all_of(part.begin() + count * 4, part.end(), [](char c) { return c == 'x'; }));
  }
}

TEST(strided_draw_leaves_gaps_unchanged) {
  const Draw d = example_draw(Distribution::Normal, Element::F64, 7 * 11 * 13);
  const auto contiguous = run_draw(d, {}, d.count * 8, best_level());
  const auto strided = run_draw(d, {{7, 16}, {11, 7 * 16 + 8}, {13, 11 * (7 * 16 + 8)}}, 13 * 11 * 120, best_level());
  size_t element = 0, changed = 0;
  for (int z = 0; z < 13; ++z) {
    for (int y = 0; y < 11; ++y) {
      for (int x = 0; x < 7; ++x, ++element) {
        CHECK(!std::memcmp(&strided[x * 16 + y * 120 + z * 1320], &contiguous[element * 8], 8));
      }
    }
  }
  for (size_t i = 0; i < strided.size(); i += 8) changed += std::memcmp(&strided[i], "xxxxxxxx", 8) != 0;
  CHECK(changed == d.count);
}

TEST(draw_supports_unaligned_memory) {
  Draw d = example_draw(Distribution::Exponential, Element::F64, 1000);
  const auto contiguous = run_draw(d, {}, 8000, best_level());
  std::vector<char> memory(8003);
  d.address = reinterpret_cast<uint64_t>(memory.data() + 3);
  CHECK(draw(d, nullptr) == 0);
  CHECK(std::equal(contiguous.begin(), contiguous.end(), memory.begin() + 3));
}

TEST(invalid_probability_fails_with_assert) {
  std::vector<float> probabilities(3000, 0.5f);
  std::vector<uint8_t> drawn(3000);
  Draw d = example_draw(Distribution::BernoulliTensor, Element::U8, 3000);
  d.address = reinterpret_cast<uint64_t>(drawn.data());
  d.probabilities = reinterpret_cast<uint64_t>(probabilities.data());
  CHECK(draw(d, nullptr) == 0);
  for (float bad : {1.5f, -0.1f, NAN}) {
    probabilities[2999] = bad;
    CHECK(draw(d, nullptr) == kAssertFailed);
  }
}

TEST(negative_rate_fails_with_assert) {
  std::vector<float> rates(3000, 2.5f);
  std::vector<uint16_t> drawn(3000);
  Draw d = example_draw(Distribution::Poisson, Element::F16, 3000);
  d.address = reinterpret_cast<uint64_t>(drawn.data());
  d.probabilities = reinterpret_cast<uint64_t>(rates.data());
  const auto packed = pack(d);
  CHECK(read_span(packed.data()).nbytes == 12000);
  CHECK(draw(d, nullptr) == 0);
  for (float bad : {-0.1f, NAN}) {
    rates[2999] = bad;
    CHECK(draw(d, nullptr) == kAssertFailed);
    CHECK(drawn[2999] == 0);
  }
}

TEST(queue_draws_in_order) {
  std::vector<float> drawn(5000);
  Draw d = example_draw(Distribution::Uniform, Element::F32, 5000);
  const auto expected = run_draw(d, {}, 20000, best_level());
  d.address = reinterpret_cast<uint64_t>(drawn.data());
  Worker queue;
  const auto bytes = pack(d);
  queue.fill(drawn.data(), 7, 20000);
  queue.draw(bytes.data(), bytes.size());
  CHECK(queue.wait(queue.signal(), 20'000'000'000) == Wait::Reached);
  CHECK(!std::memcmp(drawn.data(), expected.data(), 20000));
  std::vector<float> probabilities(5000, 2.0f);
  d.distribution = Distribution::BernoulliTensor;
  d.probabilities = reinterpret_cast<uint64_t>(probabilities.data());
  const auto bad = pack(d);
  queue.draw(bad.data(), bad.size());
  CHECK(queue.wait(queue.signal(), 20'000'000'000) == Wait::Reached);
  CHECK(queue.take_failure().code == kAssertFailed);
}

TEST(invalid_draws_are_rejected) {
  Draw valid = example_draw(Distribution::Integers, Element::U8, 10);
  valid.address = 4096;  // nothing is written there
  Worker queue;
  const auto rejected = [&](Draw d, size_t extra = 0) {
    auto bytes = pack(d);
    bytes.resize(bytes.size() + extra);
    return !is_valid_draw(bytes.data(), bytes.size()) &&
           !check::error_of([&] { queue.draw(bytes.data(), bytes.size()); }).empty();
  };
  CHECK(is_valid_draw(&valid, sizeof valid));
  CHECK(rejected(valid, 1));
  Draw bad = valid;
  bad.address = 0, CHECK(rejected(bad)), bad = valid;
  bad.threads = 100, CHECK(rejected(bad)), bad = valid;
  bad.threads = 0, CHECK(rejected(bad)), bad = valid;
  bad.range = 0, CHECK(rejected(bad)), bad = valid;
  bad.range = uint64_t{1} << 32, CHECK(rejected(bad)), bad = valid;
  bad.offset = 3, CHECK(rejected(bad)), bad = valid;
  bad.axes = 2, CHECK(rejected(bad)), bad = valid;
  bad.distribution = static_cast<Distribution>(77), CHECK(rejected(bad)), bad = valid;
  bad.element = static_cast<Element>(77), CHECK(rejected(bad));
  CHECK(!is_valid_draw(&valid, 3));
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
