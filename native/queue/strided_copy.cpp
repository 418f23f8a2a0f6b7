#include "queue/strided_copy.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "base/c_api.hpp"
#include "os/touched_pages.hpp"
#include "queue/convert.hpp"

namespace forebay {
namespace {

// ---- Runs: elements along one axis

struct Row {
  char* to;
  const char* source;
  ptrdiff_t to_step, source_step;
  size_t count;
};
using RunRow = void (*)(const Row& row, size_t size);

// An element at an address that may be unaligned, or that must not be: only then do compilers vectorise all loops.
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};
template <class T>
struct __attribute__((may_alias)) Aligned {
  T value;
};

template <template <class> class At, class T>
FOREBAY_INLINE T load(const char* from) {
  return reinterpret_cast<const At<T>*>(from)->value;
}

template <template <class> class At, class T>
FOREBAY_INLINE void store(char* to, T value) {
  reinterpret_cast<At<T>*>(to)->value = value;
}

struct Word16 {
  uint64_t low, high;
};

}  // namespace
}  // namespace forebay

#define LEVEL portable
#include "queue/strided_rows.hpp"
#undef LEVEL

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCHED 1  // the rows are compiled for two instruction sets
#pragma GCC push_options
#pragma GCC target("avx2")
#define LEVEL avx2
#include "queue/strided_rows.hpp"
#undef LEVEL
#pragma GCC pop_options
#endif

namespace forebay {
namespace {

using portable::All;
static_assert(std::size(All::kSizes) == static_cast<size_t>(Format::Bytes));

RunRow row_function(Level level, size_t to_format, size_t source_format, size_t size) {
#ifdef DISPATCHED
  if (std::min(level, best_level()) >= Level::Avx2) return avx2::row_function(to_format, source_format, size);
#endif
  (void)level;
  return portable::row_function(to_format, source_format, size);
}

// ---- Loops over rows

struct Loops {
  explicit Loops(const void* packed);

  // Drops axes of length 1, makes the destination's steps positive and descending, and merges adjacent axes.
  void simplify();
  int run(Level level);
  template <class Visit>
  void for_each_row(Visit visit) const;  // visit(to, source), of all elements but for the last axis
  bool stage(std::unique_ptr<char[], decltype(&std::free)>& staged);

  StridedCopy head;
  char* to;
  const char* source;
  CopyAxis axes[kMaxAxes + 1];  // one more, so that there is always a last axis
  size_t count;                 // of axes
  bool empty = false;
};

Loops::Loops(const void* packed) {
  std::memcpy(&head, packed, sizeof head);
  const char* const after = static_cast<const char*>(packed) + sizeof head;
  count = head.axes;
  std::memcpy(axes, after, count * sizeof(CopyAxis));
  to = reinterpret_cast<char*>(head.to);
  source = head.flags & kFill ? after + count * sizeof(CopyAxis) : reinterpret_cast<const char*>(head.source);
  if (head.flags & kFill) {
    for (size_t i = 0; i < count; ++i) axes[i].source_step = 0;
  }
}

void Loops::simplify() {
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    CopyAxis axis = axes[i];
    if (axis.length == 0) empty = true;
    if (axis.length <= 1) continue;
    if (axis.to_step < 0) {
      const auto last = static_cast<int64_t>(axis.length - 1);
      to += last * axis.to_step;
      source += last * axis.source_step;
      axis.to_step = -axis.to_step;
      axis.source_step = -axis.source_step;
    }
    axes[kept++] = axis;
  }
  std::sort(axes, axes + kept, [](const CopyAxis& a, const CopyAxis& b) { return a.to_step > b.to_step; });
  count = 0;
  for (size_t i = 0; i < kept; ++i) {
    const CopyAxis& axis = axes[i];
    const auto length = static_cast<int64_t>(axis.length);
    CopyAxis* const outer = count ? &axes[count - 1] : nullptr;
    if (outer && outer->to_step == axis.to_step * length && outer->source_step == axis.source_step * length) {
      *outer = {outer->length * axis.length, axis.to_step, axis.source_step};
    } else {
      axes[count++] = axis;
    }
  }
  if (!count) axes[count++] = {1, static_cast<int64_t>(head.to_size), static_cast<int64_t>(head.source_size)};
}

template <class Visit>
void Loops::for_each_row(Visit visit) const {
  uint64_t index[kMaxAxes] = {};
  char* to_row = to;
  const char* source_row = source;
  for (;;) {
    visit(to_row, source_row);
    size_t axis = count - 1;  // the innermost but one
    for (; axis > 0; --axis) {
      const CopyAxis& outer = axes[axis - 1];
      to_row += outer.to_step;
      source_row += outer.source_step;
      if (++index[axis - 1] < outer.length) break;
      to_row -= static_cast<int64_t>(outer.length) * outer.to_step;
      source_row -= static_cast<int64_t>(outer.length) * outer.source_step;
      index[axis - 1] = 0;
    }
    if (axis == 0) return;
  }
}

// Copies the source's elements to memory of their own, in the order of the axes.
bool Loops::stage(std::unique_ptr<char[], decltype(&std::free)>& staged) {
  const size_t size = head.source_size;
  size_t total = size;
  for (size_t i = 0; i < count; ++i) {
    if (__builtin_mul_overflow(total, axes[i].length, &total)) return false;
  }
  staged.reset(static_cast<char*>(std::malloc(total)));
  if (!staged) return false;
  const CopyAxis& row = axes[count - 1];
  const RunRow move = portable::mover(size);
  char* next = staged.get();
  for_each_row([&](char*, const char* source_row) {
    move({next, source_row, static_cast<ptrdiff_t>(size), row.source_step, row.length}, size);
    next += row.length * size;
  });
  source = staged.get();
  auto step = static_cast<int64_t>(size);
  for (size_t i = count; i-- > 0;) {
    axes[i].source_step = step;
    step *= static_cast<int64_t>(axes[i].length);
  }
  return true;
}

int Loops::run(Level level) {
  simplify();
  if (empty) return 0;
  std::unique_ptr<char[], decltype(&std::free)> staged(nullptr, &std::free);
  if (head.flags & kMayOverlap && !stage(staged)) return kNoHostMemory;
  const auto to_format = static_cast<size_t>(head.to_format), source_format = static_cast<size_t>(head.source_format);
  const RunRow run_row = row_function(level, to_format, source_format, head.to_size);
  const CopyAxis& row = axes[count - 1];
  for_each_row([&](char* to_row, const char* source_row) {
    run_row({to_row, source_row, row.to_step, row.source_step, row.length}, head.to_size);
  });
  return 0;
}

// Returns the range of all elements, for one side of a copy.
Span extent(uint64_t address, size_t size, const Loops& copy, int64_t CopyAxis::* step) {
  Span span{address, size};
  for (size_t i = 0; i < copy.count; ++i) {
    const CopyAxis& axis = copy.axes[i];
    if (axis.length == 0) return {address, 0};
    const int64_t reach = static_cast<int64_t>(axis.length - 1) * axis.*step;
    if (reach < 0) span.address -= static_cast<uintptr_t>(-reach);
    span.nbytes += static_cast<size_t>(reach < 0 ? -reach : reach);
  }
  return span;
}

}  // namespace

bool is_valid_strided_copy(const void* packed, size_t nbytes) {
  StridedCopy head;
  if (nbytes < sizeof head) return false;
  std::memcpy(&head, packed, sizeof head);
  const bool fill = head.flags & kFill;
  if (head.flags > (kFill | kMayOverlap) || head.axes > kMaxAxes) return false;
  if (!head.to || (!fill && !head.source)) return false;
  const auto fits = [](Format format, uint64_t size) {
    return format < Format::Bytes ? size == All::kSizes[static_cast<size_t>(format)] : format == Format::Bytes && size;
  };
  if (!fits(head.to_format, head.to_size) || !fits(head.source_format, head.source_size)) return false;
  const bool converts = head.to_format != head.source_format;
  if (converts ? fill || std::max(head.to_format, head.source_format) == Format::Bytes
               : head.to_size != head.source_size) {
    return false;
  }
  const size_t rest = nbytes - sizeof head, axes = head.axes * sizeof(CopyAxis);
  return fill ? rest > axes && rest - axes == head.to_size : rest == axes;
}

size_t simplify_strided_copy(const void* packed, void* simplified) {
  Loops copy(packed);
  copy.simplify();
  if (copy.empty) return 0;
  copy.head.to = reinterpret_cast<uint64_t>(copy.to);
  if (!(copy.head.flags & kFill)) copy.head.source = reinterpret_cast<uint64_t>(copy.source);
  copy.head.axes = static_cast<uint8_t>(copy.count);
  std::memcpy(simplified, &copy.head, sizeof copy.head);
  std::memcpy(static_cast<char*>(simplified) + sizeof copy.head, copy.axes, copy.count * sizeof(CopyAxis));
  return sizeof copy.head + copy.count * sizeof(CopyAxis);
}

int run_strided_copy(const void* packed, Level level) { return Loops(packed).run(level); }

Span copy_written_span(const void* packed) {
  const Loops copy(packed);
  return extent(copy.head.to, copy.head.to_size, copy, &CopyAxis::to_step);
}

Span copy_read_span(const void* packed) {
  const Loops copy(packed);
  if (copy.head.flags & kFill) return {copy.head.to, 0};
  return extent(copy.head.source, copy.head.source_size, copy, &CopyAxis::source_step);
}

bool any_written_span(const void* packed, const std::function<bool(Span)>& visit) {
  Loops copy(packed);
  copy.simplify();
  if (copy.empty) return false;
  // Axes whose elements are far apart are followed; those inside make up one range.
  size_t inner = copy.count;
  size_t range = copy.head.to_size;
  while (inner > 0 && static_cast<size_t>(copy.axes[inner - 1].to_step) <= range + touched::kStep) {
    --inner;
    range += (copy.axes[inner].length - 1) * static_cast<size_t>(copy.axes[inner].to_step);
  }
  copy.axes[inner] = {1, 0, 0};
  copy.count = inner + 1;
  bool found = false;
  copy.for_each_row([&](char* at, const char*) { found = found || visit({reinterpret_cast<uintptr_t>(at), range}); });
  return found;
}

}  // namespace forebay

// For backends/common/strided_copy_encoding.py: runs a copy of host memory on the calling thread. -1: it is invalid.
EXPORTED int forebay_copy_strided_now(const void* packed, size_t nbytes) noexcept {
  return forebay::is_valid_strided_copy(packed, nbytes) ? forebay::run_strided_copy(packed) : -1;
}

// Writes the header and the axes of a copy after they were simplified, at most one axis more than before. Returns their
// size, 0 if there are no elements, or -1 if the copy is invalid.
EXPORTED int forebay_simplify_strided_copy(const void* packed, size_t nbytes, void* simplified) noexcept {
  if (!forebay::is_valid_strided_copy(packed, nbytes)) return -1;
  return static_cast<int>(forebay::simplify_strided_copy(packed, simplified));
}
