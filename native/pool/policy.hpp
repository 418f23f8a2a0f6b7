// How much to take: PyTorch's sizes (torch-semantics 3.1, 3.3, 3.5), all in bytes, and the settings that change them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace forebay {

constexpr uint64_t kGrain = 256;                  // every address and size in here is a multiple of it
constexpr uint64_t kQuantum = kGrain * 2;         // every block is a multiple of it, but where buffers have their own
constexpr uint64_t kSmall = uint64_t{1} << 20;    // the largest block of the small kind
constexpr uint64_t kSmallSegment = kSmall * 2;    // for them
constexpr uint64_t kLargeSegment = kSmall * 20;   // for blocks below kOwnSegment
constexpr uint64_t kOwnSegment = kSmall * 10;     // from here on a block gets a segment of its own size
constexpr uint64_t kSegmentQuantum = kSmall * 2;  // which is a multiple of this
constexpr uint64_t kFineQuantum = kSmall / 16;    // or, where taking memory is cheap, of this
constexpr uint64_t kSlack = kSmall * 32;          // a buffer may be so much larger than what is asked of it
constexpr uint64_t kMost = uint64_t{1} << 60;     // nothing larger is asked of any device
constexpr uint64_t kUnlimited = ~uint64_t{0};

constexpr uint64_t round_up(uint64_t nbytes, uint64_t quantum) { return (nbytes + quantum - 1) / quantum * quantum; }

constexpr bool is_small(uint64_t size) { return size <= kSmall; }

constexpr unsigned log2_of(uint64_t size) { return 63u - static_cast<unsigned>(__builtin_clzll(size)); }

struct Policy {
  Policy() = default;
  // std::invalid_argument unless there are as many divisions as below.
  Policy(const std::vector<uint64_t>& steps, uint64_t max_split, uint64_t max_non_split_rounding,
         uint64_t large_segment, bool growing, bool ages, bool fine, uint64_t buffers = 0, uint64_t limit = 0)
      : max_split(max_split),
        max_non_split_rounding(max_non_split_rounding),
        large_segment(large_segment),
        growing(growing),
        ages(ages),
        fine(fine),
        heaps(buffers != 0),
        limit(limit == 0 ? kUnlimited : limit) {
    if (heaps) quantum = buffers;
    if (quantum % kGrain || (quantum & (quantum - 1)))
      throw std::invalid_argument("buffers are aligned to a power of two, 256 or more");
    if (steps.size() != divisions.size()) throw std::invalid_argument("there are 16 divisions");
    std::copy(steps.begin(), steps.end(), divisions.begin());
    divides = *std::max_element(steps.begin(), steps.end()) > 1;
  }

  // Into how many steps a doubling of the size is divided, for sizes from 1 MiB (and all below), 2 MiB, … 32 GiB.
  std::array<uint64_t, 16> divisions{};
  bool divides = false;                             // whether any is more than 1
  uint64_t max_split = kUnlimited;                  // blocks from here on stay whole, and go to no smaller request
  uint64_t max_non_split_rounding = kLargeSegment;  // how much larger than the request such a block may be
  uint64_t large_segment = kLargeSegment;
  bool growing = false;  // new memory comes as pages of growing segments
  bool ages = false;     // free blocks grow older with each request
  bool fine = false;   // taking memory is cheap: a segment holds whole blocks of the size it is taken for, and no more
  bool heaps = false;  // segments are heaps (heaps.cpp), and blocks their buffers
  uint64_t limit = kUnlimited;  // of heaps: nothing is handed out where this much would be reserved
  uint64_t quantum = kQuantum;  // a power of two

  uint64_t block_size(uint64_t nbytes) const {
    if (divides && nbytes > kQuantum) {
      const unsigned log = log2_of(nbytes), slot = log < 20 ? 0 : log > 35 ? 15 : log - 20;
      const uint64_t steps = divisions[slot], floor = uint64_t{1} << log;
      if (steps > 1 && nbytes > kQuantum * steps) {
        const uint64_t step = floor / steps;
        return nbytes == floor ? floor : step == 0 ? floor * 2 : round_up(nbytes, step);
      }
    }
    return nbytes < quantum ? quantum : (nbytes + quantum - 1) & ~(quantum - 1);
  }

  uint64_t segment_size(uint64_t size) const {
    if (fine) return round_up(is_small(size) ? round_up(kSmallSegment, size) : size, kFineQuantum);
    if (is_small(size)) return kSmallSegment;
    return size < kOwnSegment ? large_segment : round_up(size, kSegmentQuantum);
  }

  // What to ask a device for when no block of `nbytes` is free, and whether it is of the small kind.
  std::pair<uint64_t, bool> segment_for(uint64_t nbytes) const {
    const uint64_t size = block_size(nbytes);
    return {segment_size(size), is_small(size)};
  }

  // Whether the rest of a block is worth being a block of its own, when `size` of it is taken. `fine`: of the small
  // kind, or where memory grows.
  bool worth_splitting(bool fine, uint64_t size, uint64_t rest) const {
    return !heaps && (fine ? rest >= kQuantum : size < max_split && rest > kSmall);
  }
};

}  // namespace forebay
