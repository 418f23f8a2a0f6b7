// A pool's segments and blocks as rows with the layout that snapshot/model.py reads.
#pragma once

#include <cstdint>
#include <vector>

#include "pool/pool.hpp"

namespace forebay {

struct SegmentRow {
  uint64_t address, nbytes, queue;
  uint32_t stack, small, pool_number, expandable;
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

// Each run of committed ranges of an expandable segment counts as a segment, as in PyTorch's snapshots.
inline Rows rows_of(const Pool& pool) {
  Rows rows;
  bool in_run = false;
  const Segment* current = nullptr;
  pool.walk(
      [&](const Segment& segment) {
        current = &segment;
        in_run = false;
      },
      [&](const Block& block) {
        if (block.state == State::Uncommitted || block.state == State::Committing) {
          in_run = false;
          return;
        }
        if (!in_run) {
          const Segment& s = *current;
          rows.segments.push_back({block.address, 0, s.queue, block.prev == nullptr ? s.stack : 0, s.small ? 1u : 0u,
                                   s.free_list->partition->pool_number, s.expandable() ? 1u : 0u});
          in_run = true;
        }
        rows.segments.back().nbytes += block.size;
        const State state = block.state > State::PendingFree ? State::Free : block.state;
        rows.blocks.push_back({block.address, block.size, block.requested, block.stack,
                               static_cast<uint32_t>(rows.segments.size() - 1), static_cast<uint64_t>(state)});
      });
  return rows;
}

}  // namespace forebay
