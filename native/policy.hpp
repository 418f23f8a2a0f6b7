// How much to take: PyTorch's sizes (torch-semantics 3.1, 3.3, 3.5), all in bytes.
#pragma once

#include <cstdint>
#include <utility>

namespace penstock {

constexpr uint64_t kQuantum = 512;                // every block is a multiple of it
constexpr uint64_t kSmall = uint64_t{1} << 20;    // the largest block of the small kind
constexpr uint64_t kSmallSegment = kSmall * 2;    // for them
constexpr uint64_t kLargeSegment = kSmall * 20;   // for blocks below kOwnSegment
constexpr uint64_t kOwnSegment = kSmall * 10;     // from here on a block gets a segment of its own size
constexpr uint64_t kSegmentQuantum = kSmall * 2;  // which is a multiple of this
constexpr uint64_t kFineQuantum = kSmall / 16;    // or, where taking memory is cheap, of this
constexpr uint64_t kMost = uint64_t{1} << 60;     // nothing larger is asked of any device

constexpr uint64_t round_up(uint64_t nbytes, uint64_t quantum) { return (nbytes + quantum - 1) / quantum * quantum; }

constexpr uint64_t block_size(uint64_t nbytes) { return nbytes < kQuantum ? kQuantum : round_up(nbytes, kQuantum); }

constexpr bool is_small(uint64_t size) { return size <= kSmall; }

// `fine`: where taking memory is cheap, a segment holds whole blocks of the size it is taken for, and no more.
constexpr uint64_t segment_size(uint64_t size, bool fine = false) {
  if (fine) return round_up(is_small(size) ? round_up(kSmallSegment, size) : size, kFineQuantum);
  if (is_small(size)) return kSmallSegment;
  return size < kOwnSegment ? kLargeSegment : round_up(size, kSegmentQuantum);
}

// What to ask a device for when no block of `nbytes` is free, and whether it is of the small kind.
constexpr std::pair<uint64_t, bool> segment_for(uint64_t nbytes, bool fine) {
  const uint64_t size = block_size(nbytes);
  return {segment_size(size, fine), is_small(size)};
}

// Whether the rest of a block is worth being a block of its own.
constexpr bool worth_splitting(bool small, uint64_t rest) { return small ? rest >= kQuantum : rest > kSmall; }

}  // namespace penstock
