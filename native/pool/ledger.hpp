// Quantities over time: now, highest, all that came, all that went; for all blocks, the small and the large kind.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace forebay {

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

// One quantity.
class Tally {
 public:
  void add(bool small, int64_t change) {
    Side& side = sides_[small ? 0 : 1];
    side.current += change;
    if (change <= 0) return;
    side.came += change;
    side.peak = std::max(side.peak, side.current);
    peak_ = std::max(peak_, sides_[0].current + sides_[1].current);
  }

  // What went is what came and is not here now, so a decrease has nothing to note.
  Count read(Kind kind) const {
    const Side &small = sides_[0], &large = sides_[1];
    if (kind == kSmallKind) return {small.current, small.peak, small.came, small.came + small.since - small.current};
    if (kind == kLargeKind) return {large.current, large.peak, large.came, large.came + large.since - large.current};
    const int64_t current = small.current + large.current, came = small.came + large.came;
    return {current, peak_, came, came + small.since + large.since - current};
  }

  void reset_peak() {
    for (Side& side : sides_) side.peak = side.current;
    peak_ = sides_[0].current + sides_[1].current;
  }

  void reset_accumulated() {
    for (Side& side : sides_) side.came = 0, side.since = side.current;
  }

 private:
  struct Side {
    int64_t current = 0, peak = 0, came = 0;
    int64_t since = 0;  // current when `came` was last reset
  };
  std::array<Side, 2> sides_;
  int64_t peak_ = 0;
};

// The highest that bytes were since somebody began to watch, and what they were then.
struct Peaks {
  int64_t allocated, reserved, allocated_before, reserved_before;
};

class Ledger {
 public:
  void add(Metric metric, bool small, int64_t change) {
    tallies_[metric].add(small, change);
    if ((metric == kAllocatedBytes || metric == kReservedBytes) && change > 0 && !meters_.empty()) watch();
  }

  // Meters know nothing of each other, nor of `reset_peaks`.
  uint64_t begin_meter() {
    const int64_t allocated = read(kAllocatedBytes, kAll).current, reserved = read(kReservedBytes, kAll).current;
    meters_[++meters_begun_] = {allocated, reserved, allocated, reserved};
    return meters_begun_;
  }

  const Peaks& meter(uint64_t number) const { return meters_.at(number); }
  void end_meter(uint64_t number) { meters_.erase(number); }

  Count read(Metric metric, Kind kind) const { return tallies_[metric].read(kind); }

  void reset_peaks() {
    for (Tally& tally : tallies_) tally.reset_peak();
  }

  void reset_accumulated() {
    for (Tally& tally : tallies_) tally.reset_accumulated();
  }

 private:
  void watch() {
    for (auto& [number, peaks] : meters_) {
      peaks.allocated = std::max(peaks.allocated, read(kAllocatedBytes, kAll).current);
      peaks.reserved = std::max(peaks.reserved, read(kReservedBytes, kAll).current);
    }
  }

  std::array<Tally, kMetrics> tallies_;
  std::map<uint64_t, Peaks> meters_;
  uint64_t meters_begun_ = 0;
};

}  // namespace forebay
