// Allocation policy: PyTorch's size rules, in bytes, and the settings that change them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace forebay {

constexpr uint64_t kMinAlignment = 256;                   // every address and size in a pool is a multiple of this
constexpr uint64_t kMinBlockSize = kMinAlignment * 2;     // every block is a multiple of this, except heap buffers
constexpr uint64_t kMaxSmallSize = uint64_t{1} << 20;     // the largest block of the small size class
constexpr uint64_t kSmallSegment = kMaxSmallSize * 2;     // segment size of the small class
constexpr uint64_t kLargeSegment = kMaxSmallSize * 20;    // segment size for blocks below kMinLargeAlloc
constexpr uint64_t kMinLargeAlloc = kMaxSmallSize * 10;   // a block of this size or more gets a segment of its own
constexpr uint64_t kSegmentRounding = kMaxSmallSize * 2;  // whose size is a multiple of this
constexpr uint64_t kExactSegmentRounding = kMaxSmallSize / 16;  // or of this, with Policy::exact_segments
constexpr uint64_t kMaxBufferExcess = kMaxSmallSize * 32;       // a reused buffer may exceed the request by this much
constexpr uint64_t kMaxRequest = uint64_t{1} << 60;             // larger requests are refused without asking the device
constexpr uint64_t kUnlimited = ~uint64_t{0};

constexpr uint64_t round_up(uint64_t nbytes, uint64_t multiple) {
  return (nbytes + multiple - 1) / multiple * multiple;
}

constexpr bool is_small(uint64_t size) { return size <= kMaxSmallSize; }

constexpr unsigned log2_of(uint64_t size) { return 63u - static_cast<unsigned>(__builtin_clzll(size)); }

struct Policy {
  Policy() = default;
  // Throws std::invalid_argument for a wrong number of divisions or an invalid buffer alignment. A buffer alignment of
  // 0 means segments that are no heaps; a heap limit of 0 means unlimited.
  Policy(const std::vector<uint64_t>& divisions, uint64_t max_split, uint64_t max_non_split_rounding,
         uint64_t large_segment, bool expandable, bool track_age, bool exact_segments, uint64_t buffer_alignment = 0,
         uint64_t heap_limit = 0)
      : max_split(max_split),
        max_non_split_rounding(max_non_split_rounding),
        large_segment(large_segment),
        expandable(expandable),
        track_age(track_age),
        exact_segments(exact_segments),
        heaps(buffer_alignment != 0),
        heap_limit(heap_limit == 0 ? kUnlimited : heap_limit) {
    if (heaps) block_alignment = buffer_alignment;
    const auto is_power_of_2 = [](uint64_t number) { return (number & (number - 1)) == 0; };  // or 0
    if (block_alignment % kMinAlignment || !is_power_of_2(block_alignment) || block_alignment >= kMaxRequest)
      throw std::invalid_argument("the buffer alignment must be a power of two of at least 256 and less than 2^60");
    if (divisions.size() != this->divisions.size()) throw std::invalid_argument("expected 16 divisions");
    if (!std::all_of(divisions.begin(), divisions.end(), is_power_of_2))
      throw std::invalid_argument("the divisions must be powers of two");
    std::copy(divisions.begin(), divisions.end(), this->divisions.begin());
    has_divisions = *std::max_element(divisions.begin(), divisions.end()) > 1;
  }

  // Number of steps per doubling of the size, for sizes from 1 MiB (and below), 2 MiB, ..., 32 GiB (and above).
  std::array<uint64_t, 16> divisions{};
  bool has_divisions = false;                       // true if any division exceeds 1
  uint64_t max_split = kUnlimited;                  // blocks of this size or more are never split, nor used for less
  uint64_t max_non_split_rounding = kLargeSegment;  // by how much such a block may exceed the request
  uint64_t large_segment = kLargeSegment;
  bool expandable = false;      // new memory is committed as pages of expandable segments
  bool track_age = false;       // count requests, to know the age of free blocks
  bool exact_segments = false;  // a segment holds whole blocks of the requested size only, as memory is cheap to obtain
  bool heaps = false;           // segments are heaps (heaps.cpp), and blocks are buffers
  uint64_t heap_limit = kUnlimited;          // no allocation succeeds that would reserve this many bytes in heaps
  uint64_t block_alignment = kMinBlockSize;  // a power of two

  uint64_t block_size(uint64_t nbytes) const {
    if (has_divisions && nbytes > kMinBlockSize) {
      const unsigned log = log2_of(nbytes), slot = log < 20 ? 0 : log > 35 ? 15 : log - 20;
      const uint64_t steps = divisions[slot], floor = uint64_t{1} << log;
      if (steps > 1 && nbytes > kMinBlockSize * steps) {
        const uint64_t step = floor / steps;
        return nbytes == floor ? floor : step == 0 ? floor * 2 : round_up(nbytes, step);
      }
    }
    return nbytes < block_alignment ? block_alignment : (nbytes + block_alignment - 1) & ~(block_alignment - 1);
  }

  uint64_t segment_size(uint64_t size) const {
    if (exact_segments) return round_up(is_small(size) ? round_up(kSmallSegment, size) : size, kExactSegmentRounding);
    if (is_small(size)) return kSmallSegment;
    return size < kMinLargeAlloc ? large_segment : round_up(size, kSegmentRounding);
  }

  // Returns the segment size to request when no free block of `nbytes` exists, and whether it is of the small class.
  std::pair<uint64_t, bool> segment_for(uint64_t nbytes) const {
    const uint64_t size = block_size(nbytes);
    return {segment_size(size), is_small(size)};
  }

  // Returns true if the remainder of a block should become a block when `size` bytes of it are allocated.
  // `fine_grained`: the block is of the small class or the memory is expandable.
  bool should_split(bool fine_grained, uint64_t size, uint64_t remainder) const {
    return !heaps && (fine_grained ? remainder >= kMinBlockSize : size < max_split && remainder > kMaxSmallSize);
  }
};

}  // namespace forebay
