// A pool's segments and blocks as rows, laid out as snapshot/model.py reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "pool/pool.hpp"

namespace forebay {

struct SegmentRow {
  uint64_t address, nbytes, queue;
  uint32_t stack, small, home, growing;
};
static_assert(sizeof(SegmentRow) == 40, "snapshot/model.py reads segments of 40 bytes");

struct BlockRow {
  uint64_t address, nbytes, requested;
  uint32_t stack, segment;
  uint64_t state;
};
static_assert(sizeof(BlockRow) == 40, "snapshot/model.py reads blocks of 40 bytes");

struct Rows {
  std::vector<SegmentRow> segments;
  std::vector<BlockRow> blocks;
};

// Of a growing segment each run of pieces with memory counts as a segment, as in PyTorch's snapshots.
inline Rows rows_of(const Pool& pool) {
  Rows rows;
  bool open = false;
  const Segment* current = nullptr;
  pool.walk(
      [&](const Segment& segment) {
        current = &segment;
        open = false;
      },
      [&](const Block& block) {
        if (block.state == State::Bare || block.state == State::Coming) {
          open = false;
          return;
        }
        if (!open) {
          const Segment& s = *current;
          rows.segments.push_back({block.address, 0, s.queue, s.stack, s.small ? 1u : 0u, s.free_list->home->number,
                                   s.growing() ? 1u : 0u});
          open = true;
        }
        rows.segments.back().nbytes += block.size;
        const State state = block.state > State::Awaiting ? State::Free : block.state;
        rows.blocks.push_back({block.address, block.size, block.requested, block.stack,
                               static_cast<uint32_t>(rows.segments.size() - 1), static_cast<uint64_t>(state)});
      });
  return rows;
}

}  // namespace forebay
