// Nine quantities over time: now, highest, all that came, all that went; for all blocks, the small and the large kind.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

enum Metric : unsigned {
  kAllocation,
  kSegment,
  kActive,
  kInactiveSplit,
  kAllocatedBytes,
  kReservedBytes,
  kActiveBytes,
  kInactiveSplitBytes,
  kRequestedBytes,
  kMetrics
};

// What PyTorch calls them, in this order.
inline std::vector<std::string> metric_names() {
  return {"allocation",      "segment",        "active",       "inactive_split",
          "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
          "requested_bytes"};
}

enum Kind : unsigned { kAll, kSmallKind, kLargeKind, kKinds };

struct Count {
  int64_t current, peak, allocated, freed;
};

class Ledger {
 public:
  void add(Metric metric, bool small, int64_t change) {
    Row& row = rows_[metric];
    Side& side = row.side[small ? 0 : 1];
    side.current += change;
    if (change <= 0) return;
    side.came += change;
    side.peak = std::max(side.peak, side.current);
    row.peak = std::max(row.peak, row.side[0].current + row.side[1].current);
  }

  // What went is what came and is not here now, so a decrease has nothing to note.
  Count read(Metric metric, Kind kind) const {
    const Row& row = rows_[metric];
    const Side &small = row.side[0], &large = row.side[1];
    if (kind == kSmallKind) return {small.current, small.peak, small.came, small.came + small.since - small.current};
    if (kind == kLargeKind) return {large.current, large.peak, large.came, large.came + large.since - large.current};
    const int64_t current = small.current + large.current, came = small.came + large.came;
    return {current, row.peak, came, came + small.since + large.since - current};
  }

  void reset_peaks() {
    for (Row& row : rows_) {
      for (Side& side : row.side) side.peak = side.current;
      row.peak = row.side[0].current + row.side[1].current;
    }
  }

  void reset_accumulated() {
    for (Row& row : rows_) {
      for (Side& side : row.side) side.came = 0, side.since = side.current;
    }
  }

 private:
  struct Side {
    int64_t current = 0, peak = 0, came = 0;
    int64_t since = 0;  // current when `came` was last reset
  };
  struct Row {
    std::array<Side, 2> side;
    int64_t peak = 0;
  };
  std::array<Row, kMetrics> rows_;
};

}  // namespace penstock
