// Tests of strided copies: layouts against a model, conversions, overlapping memory, fills, and validation.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "os/touched_pages.hpp"
#include "queue/strided_copy.hpp"
#include "queue/worker.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr int64_t kLimit = 20'000'000'000;

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

std::vector<char> pack(const StridedCopy& head, const std::vector<CopyAxis>& axes, const std::string& value = {}) {
  StridedCopy copy = head;
  copy.axes = static_cast<uint8_t>(axes.size());
  std::vector<char> bytes(sizeof copy + axes.size() * sizeof(CopyAxis) + value.size());
  std::memcpy(bytes.data(), &copy, sizeof copy);
  if (!axes.empty()) std::memcpy(bytes.data() + sizeof copy, axes.data(), axes.size() * sizeof(CopyAxis));
  std::copy(value.begin(), value.end(), bytes.end() - static_cast<ptrdiff_t>(value.size()));
  return bytes;
}

StridedCopy bytes_copy(const void* to, const void* source, size_t size, uint8_t flags = 0) {
  return {address_of(to), address_of(source), size, size, Format::Bytes, Format::Bytes, flags, 0, 0};
}

bool run(const std::vector<char>& packed) {
  return is_valid_strided_copy(packed.data(), packed.size()) && run_strided_copy(packed.data()) == 0;
}

template <class To, class From>
std::vector<To> converted(Format to_format, Format source_format, const std::vector<From>& values) {
  std::vector<To> found(values.size());
  const StridedCopy head{
      address_of(found.data()), address_of(values.data()), sizeof(To), sizeof(From), to_format, source_format, 0, 0, 0};
  CHECK(run(pack(head, {{values.size(), sizeof(To), sizeof(From)}})));
  return found;
}

// A random layout inside a buffer, and its copy one element at a time.
struct Layout {
  std::vector<CopyAxis> axes;
  size_t to_start = 0, source_start = 0, to_size = 0, source_size = 0;

  Layout(std::mt19937& random, size_t size, bool may_repeat) {
    const auto below = [&](size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random); };
    std::vector<size_t> lengths(below(5));
    for (size_t& length : lengths) length = 1 + below(4);
    axes.resize(lengths.size());
    for (int64_t CopyAxis::* step : {&CopyAxis::to_step, &CopyAxis::source_step}) {
      std::vector<size_t> order(lengths.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      size_t extent = size, start = 0;
      for (const size_t i : order) {
        axes[i].length = lengths[i];
        const size_t distance = extent + (below(2) ? below(3) : 0);
        const bool repeats = may_repeat && step == &CopyAxis::source_step && below(4) == 0;
        const bool backwards = below(3) == 0;
        axes[i].*step = repeats ? 0 : backwards ? -static_cast<int64_t>(distance) : static_cast<int64_t>(distance);
        if (repeats) continue;
        if (backwards) start += (lengths[i] - 1) * distance;
        extent += (lengths[i] - 1) * distance;
      }
      (step == &CopyAxis::to_step ? to_start : source_start) = start;
      (step == &CopyAxis::to_step ? to_size : source_size) = extent;
    }
  }

  void copy_one_by_one(char* to, const char* source, size_t size, size_t axis = 0) const {
    if (axis == axes.size()) {
      std::memcpy(to, source, size);
      return;
    }
    for (size_t i = 0; i < axes[axis].length; ++i) {
      copy_one_by_one(to + static_cast<int64_t>(i) * axes[axis].to_step,
                      source + static_cast<int64_t>(i) * axes[axis].source_step, size, axis + 1);
    }
  }
};

}  // namespace

TEST(copies_of_any_layout_agree_with_model) {
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    constexpr size_t kSizes[] = {1, 2, 3, 4, 8, 10, 16, 17};
    const size_t size = kSizes[random() % std::size(kSizes)], shift = random() % 3;
    const Layout layout(random, size, true);
    std::string source(layout.source_size, 0), found(layout.to_size + shift, '.');
    for (char& byte : source) byte = static_cast<char>(random());
    std::string expected = found;
    layout.copy_one_by_one(&expected[shift + layout.to_start], &source[layout.source_start], size);
    const uint8_t flags = random() % 2 ? kMayOverlap : 0;
    CHECK(
        run(pack(bytes_copy(&found[shift + layout.to_start], &source[layout.source_start], size, flags), layout.axes)));
    CHECK(found == expected);
  }
}

TEST(overlapping_sources_are_read_first) {
  std::mt19937 random(2);
  for (int round = 0; round < 10'000; ++round) {
    const size_t size = 1 + random() % 4;
    const Layout layout(random, size, false);
    std::string memory(layout.to_size + layout.source_size, 0);
    for (char& byte : memory) byte = static_cast<char>(random());
    const size_t to = layout.to_start + random() % layout.source_size;
    const size_t source = layout.source_start + random() % layout.to_size;
    const std::string before = memory;
    std::string expected = memory;
    layout.copy_one_by_one(&expected[to], &before[source], size);
    CHECK(run(pack(bytes_copy(&memory[to], &memory[source], size, kMayOverlap), layout.axes)));
    CHECK(memory == expected);
  }
}

TEST(overlapping_source_of_2_to_the_64_bytes_fails) {
  int32_t memory = 5;
  const auto packed = pack(bytes_copy(&memory, &memory, 4, kMayOverlap), {{uint64_t{1} << 62, 0, 0}});
  CHECK(is_valid_strided_copy(packed.data(), packed.size()));
  CHECK(run_strided_copy(packed.data()) == kNoHostMemory);
  CHECK(memory == 5);
}

TEST(fills_write_the_element) {
  for (const std::string value : {"a", "ab", "abc", "abcd", "abcdefgh", "abcdefghi", "abcdefghijklmnop"}) {
    const auto size = static_cast<int64_t>(value.size());
    std::string found(value.size() * 12 + 1, '.'), expected = found;
    const auto fill = [&](std::vector<CopyAxis> axes) {
      return run(pack(bytes_copy(&found[1], nullptr, value.size(), kFill), axes, value));
    };
    CHECK(fill({{3, 4 * size, 99}, {2, size, -5}}));
    for (size_t at : {0, 1, 4, 5, 8, 9}) expected.replace(1 + at * value.size(), value.size(), value);
    CHECK(found == expected);
    CHECK(fill({{12, size, 0}}));
    for (size_t at = 0; at < 12; ++at) expected.replace(1 + at * value.size(), value.size(), value);
    CHECK(found == expected);
    CHECK(fill({{0, size, 0}, {1000, size, 0}}));
    CHECK(found == expected);
  }
}

TEST(integers_wrap_and_truncate) {
  CHECK((converted<uint8_t, int64_t>(Format::U8, Format::I64, {-1, 256, 511, 7}) ==
         std::vector<uint8_t>{255, 0, 255, 7}));
  CHECK((converted<int8_t, uint16_t>(Format::I8, Format::U16, {255, 128, 65535}) == std::vector<int8_t>{-1, -128, -1}));
  CHECK((converted<int32_t, double>(Format::I32, Format::F64, {1.9, -1.9, 2e9}) ==
         std::vector<int32_t>{1, -1, 2'000'000'000}));
  CHECK((converted<uint8_t, float>(Format::U8, Format::F32, {255.5f, 256, -1}) == std::vector<uint8_t>{255, 0, 255}));
  CHECK((converted<uint64_t, double>(Format::U64, Format::F64, {0x1p63, 0x1.8p63, 5, -1}) ==
         std::vector<uint64_t>{1ull << 63, 3ull << 62, 5, ~0ull}));
  CHECK((converted<float, uint64_t>(Format::F32, Format::U64, {~0ull, (1ull << 24) + 1}) ==
         std::vector<float>{0x1p64f, 0x1p24f}));
}

TEST(bools_are_zero_or_one) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(
      (converted<uint8_t, double>(Format::Bool, Format::F64, {0, -0.0, 0.1, nan}) == std::vector<uint8_t>{0, 0, 1, 1}));
  CHECK((converted<int32_t, uint8_t>(Format::I32, Format::Bool, {0, 1, 2, 255}) == std::vector<int32_t>{0, 1, 1, 1}));
  CHECK((converted<uint8_t, int16_t>(Format::Bool, Format::I16, {0, 256, -1}) == std::vector<uint8_t>{0, 1, 1}));
  const std::vector<float> complex{0, 0, 0, 1, 1, 0};
  uint8_t found[3];
  const StridedCopy head{address_of(found), address_of(complex.data()), 1, 8, Format::Bool, Format::C64, 0, 0, 0};
  CHECK(run(pack(head, {{3, 1, 8}})));
  CHECK(!found[0] && found[1] && found[2]);
}

TEST(instruction_sets_give_equal_results) {
  constexpr size_t kSizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16}, kCount = 999;
  std::mt19937 random(3);
  std::vector<char> source(kCount * 17);
  for (char& byte : source) byte = static_cast<char>(random());
  for (size_t to = 0; to < std::size(kSizes); ++to) {
    for (size_t from = 0; from < std::size(kSizes); ++from) {
      for (const int64_t gap : {0, 1}) {
        const auto to_step = static_cast<int64_t>(kSizes[to]) + gap, step = static_cast<int64_t>(kSizes[from]) + gap;
        std::vector<char> found[2];
        for (const Level level : {Level::Portable, best_level()}) {
          std::vector<char>& result = found[level != Level::Portable];
          result.resize(kCount * 17);
          const StridedCopy head{address_of(result.data()),
                                 address_of(source.data()),
                                 kSizes[to],
                                 kSizes[from],
                                 static_cast<Format>(to),
                                 static_cast<Format>(from),
                                 0,
                                 0,
                                 0};
          CHECK(run_strided_copy(pack(head, {{kCount, to_step, step}}).data(), level) == 0);
        }
        CHECK(best_level() == Level::Portable || found[0] == found[1]);
      }
    }
  }
}

TEST(every_float16_converts_to_float_and_back) {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for (const auto& [format, infinity] : {std::pair(Format::F16, 0x7C00), std::pair(Format::BF16, 0x7F80)}) {
    const auto floats = converted<float, uint16_t>(Format::F32, format, halves);
    const auto doubles = converted<double, uint16_t>(Format::F64, format, halves);
    const auto back = converted<uint16_t, float>(format, Format::F32, floats);
    const auto again = converted<uint16_t, double>(format, Format::F64, doubles);
    for (size_t i = 0; i < halves.size(); ++i) {
      const bool nan = (halves[i] & 0x7FFF) > infinity;
      CHECK(nan ? std::isnan(floats[i]) && std::isnan(doubles[i]) : floats[i] == doubles[i]);
      CHECK(nan ? (back[i] & 0x7FFF) > infinity && (again[i] & 0x7FFF) > infinity
                : back[i] == halves[i] && again[i] == halves[i]);
    }
  }
  const std::vector<uint16_t> known{0x3C00, 0xC000, 0x7BFF, 0x0001, 0x0400, 0x7C00, 0xFC00};
  CHECK((converted<float, uint16_t>(Format::F32, Format::F16, known) ==
         std::vector<float>{1, -2, 65504, 0x1p-24f, 0x1p-14f, INFINITY, -INFINITY}));
}

TEST(float16_is_rounded_once) {
  // Just above the middle of two numbers of float16; as a float, each is exactly the middle.
  const std::vector<double> above{1 + 0x1p-11 + 0x1p-40, 0x1p-25 + 0x1p-60, -1 - 0x1p-11 - 0x1p-40};
  CHECK((converted<uint16_t, double>(Format::F16, Format::F64, above) == std::vector<uint16_t>{0x3C01, 1, 0xBC01}));
  const std::vector<double> below{1 + 3 * 0x1p-11 - 0x1p-40, 65520 - 1e-9, 65520, 1e300, 1e-300, -0.0};
  CHECK((converted<uint16_t, double>(Format::F16, Format::F64, below) ==
         std::vector<uint16_t>{0x3C01, 0x7BFF, 0x7C00, 0x7C00, 0, 0x8000}));
}

TEST(complex_numbers_keep_their_parts) {
  const std::vector<float> complex{1.5f, 2, -3, 4};
  std::vector<double> found(4);
  StridedCopy head{address_of(found.data()), address_of(complex.data()), 16, 8, Format::C128, Format::C64, 0, 0, 0};
  CHECK(run(pack(head, {{2, 16, 8}})));
  CHECK((found == std::vector<double>{1.5, 2, -3, 4}));
  head.to_size = 8, head.to_format = Format::I64;
  std::vector<int64_t> integers(2);
  head.to = address_of(integers.data());
  CHECK(run(pack(head, {{2, 8, 8}})));
  CHECK((integers == std::vector<int64_t>{1, -3}));
  const auto widened = converted<float, int32_t>(Format::F32, Format::I32, {5, 6});
  head = {address_of(found.data()), address_of(widened.data()), 16, 4, Format::C128, Format::F32, 0, 0, 0};
  CHECK(run(pack(head, {{2, 16, 4}})));
  CHECK((found == std::vector<double>{5, 0, 6, 0}));
}

TEST(unaligned_elements_are_converted) {
  std::string source(100, 0), found(100, 0);
  for (int i = 0; i < 10; ++i) {
    const float value = static_cast<float>(i) + 0.5f;
    std::memcpy(&source[1 + static_cast<size_t>(i) * 5], &value, sizeof value);
  }
  const StridedCopy head{address_of(&found[3]), address_of(&source[1]), 8, 4, Format::F64, Format::F32, 0, 0, 0};
  CHECK(run(pack(head, {{10, 9, 5}})));
  for (int i = 0; i < 10; ++i) {
    double value;
    std::memcpy(&value, &found[3 + static_cast<size_t>(i) * 9], sizeof value);
    CHECK(value == i + 0.5);
  }
}

TEST(queue_runs_strided_copies_in_order) {
  std::vector<float> numbers(1000, 2.5f);
  std::vector<int32_t> integers(1000);
  Worker queue;
  const auto convert =
      pack({address_of(integers.data()), address_of(numbers.data()), 4, 4, Format::I32, Format::F32, 0, 0, 0},
           {{1000, 4, 4}});
  const auto fill = pack(bytes_copy(numbers.data(), nullptr, 4, kFill), {{1000, 4, 0}}, std::string("\0\0\x80\x40", 4));
  queue.copy_strided(fill.data(), fill.size());
  queue.copy_strided(convert.data(), convert.size());
  CHECK(queue.submitted() == 2);
  CHECK(queue.wait(queue.signal(), kLimit) == Wait::Reached);
  CHECK(numbers[999] == 4);
  CHECK(integers[0] == 4 && integers[999] == 4);
}

TEST(spans_cover_all_elements) {
  char memory[1000];
  const auto packed = pack(bytes_copy(memory + 500, memory + 100, 4), {{3, -100, 8}, {2, 10, -20}});
  const Span written = copy_written_span(packed.data()), read = copy_read_span(packed.data());
  CHECK(written.address == address_of(memory + 300) && written.nbytes == 214);
  CHECK(read.address == address_of(memory + 80) && read.nbytes == 40);
  const auto fill = pack(bytes_copy(memory, nullptr, 1, kFill), {{9, 3, 0}}, "x");
  CHECK(copy_written_span(fill.data()).nbytes == 25);
  CHECK(copy_read_span(fill.data()).nbytes == 0);
  CHECK(copy_written_span(pack(bytes_copy(memory, memory, 1), {{0, 1, 1}, {5, 1, 1}}).data()).nbytes == 0);
}

TEST(written_spans_leave_out_large_gaps) {
  constexpr auto kStep = static_cast<int64_t>(touched::kStep);
  const uint64_t base = uint64_t{1} << 40;  // never accessed
  const auto spans = [&](const std::vector<CopyAxis>& axes) {
    std::vector<Span> found;
    const auto packed = pack(bytes_copy(reinterpret_cast<void*>(base), nullptr, 4, kFill), axes, "abcd");
    any_written_span(packed.data(), [&](Span span) { return found.push_back(span), false; });
    return found;
  };
  const auto far = spans({{2, 100, 0}, {3, 3 * kStep, 0}, {5, 8, 0}});
  CHECK(far.size() == 3);
  CHECK(far[1].address == base + 3 * touched::kStep && far[1].nbytes == 4 + 100 + 32);
  const auto near = spans({{100, 10'000, 0}, {5, 8, 0}});
  CHECK(near.size() == 1 && near[0].nbytes == 4 + 99 * 10'000 + 32);
  CHECK(spans({}).size() == 1);
  CHECK(spans({{0, 8, 0}}).empty());
  const auto packed = pack(bytes_copy(reinterpret_cast<void*>(base), nullptr, 4, kFill), {{9, 3 * kStep, 0}}, "abcd");
  int visited = 0;
  CHECK(any_written_span(packed.data(), [&](Span) { return ++visited == 2; }));
  CHECK(visited == 2);
}

TEST(invalid_copies_are_rejected) {
  char memory[64] = {};
  Worker queue;
  const auto rejected = [&](const std::vector<char>& packed) {
    return !is_valid_strided_copy(packed.data(), packed.size()) &&
           check::error_of([&] { queue.copy_strided(packed.data(), packed.size()); }) == "invalid strided copy";
  };
  const std::vector<CopyAxis> axes{{2, 4, 4}};
  const StridedCopy valid = bytes_copy(memory, memory + 8, 4);
  auto packed = pack(valid, axes);
  CHECK(is_valid_strided_copy(packed.data(), packed.size()));
  packed.push_back(0), CHECK(rejected(packed));
  CHECK(rejected({packed.begin(), packed.begin() + 10}));
  CHECK(rejected(pack(valid, std::vector<CopyAxis>(65, axes[0]))));
  StridedCopy bad = valid;
  bad.to = 0, CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.source = 0, CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.to_size = 3, CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.to_size = bad.source_size = 0, CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.to_format = Format::F32, CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.to_format = bad.source_format = Format::F64, CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.to_format = static_cast<Format>(16), CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.flags = 4, CHECK(rejected(pack(bad, axes))), bad = valid;
  bad.flags = kFill, CHECK(rejected(pack(bad, axes))), CHECK(rejected(pack(bad, axes, "abc")));
  CHECK(rejected(pack(bad, axes, "abcde")));
  bad.to_format = Format::F32, bad.source_format = Format::I32, CHECK(rejected(pack(bad, axes, "abcd")));
  CHECK(queue.idle());
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
