// A pool's segments and blocks as rows, laid out as snapshot/model.py reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "pool.hpp"

namespace penstock {

struct SegmentRow {
  uint64_t address, nbytes, queue;
  uint32_t stack, small;
};
static_assert(sizeof(SegmentRow) == 32, "snapshot/model.py reads segments of 32 bytes");

struct BlockRow {
  uint64_t address, nbytes, requested;
  uint32_t stack, segment;
  uint64_t state;
};
static_assert(sizeof(BlockRow) == 40, "snapshot/model.py reads blocks of 40 bytes");

inline std::vector<SegmentRow> segment_rows(const Pool& pool) {
  std::vector<SegmentRow> rows;
  pool.walk([&](const Segment& s) { rows.push_back({s.address, s.size, s.queue, s.stack, s.small ? 1u : 0u}); },
            [](const Block&) {});
  return rows;
}

inline std::vector<BlockRow> block_rows(const Pool& pool) {
  std::vector<BlockRow> rows;
  uint32_t segments = 0;
  pool.walk([&](const Segment&) { ++segments; },
            [&](const Block& b) {
              rows.push_back({b.address, b.size, b.requested, b.stack, segments - 1, static_cast<uint64_t>(b.state)});
            });
  return rows;
}

}  // namespace penstock
