// Memory statistics of a pool: nine metrics, each for all blocks and separately for the small and large size classes.
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

// PyTorch's names of the metrics, in the order of the enum.
inline std::vector<std::string> metric_names() {
  return {"allocation",      "segment",        "active",       "inactive_split",
          "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
          "requested_bytes"};
}

enum SizeClass : unsigned { kAllSizes, kSmallClass, kLargeClass, kSizeClasses };

struct Stat {
  int64_t current, peak, allocated, freed;
};

// Counter of one metric.
class Counter {
 public:
  void add(bool small, int64_t change) {
    PerClass& own = classes_[small ? 0 : 1];
    own.current += change;
    if (change <= 0) return;
    own.allocated += change;
    // Branches, as peaks are rare: they are predicted, and a store less.
    if (own.current > own.peak) own.peak = own.current;
    if (const int64_t all = classes_[0].current + classes_[1].current; all > peak_) peak_ = all;
  }

  // Frees need no counter of their own: freed = allocated - current since the last reset.
  Stat read(SizeClass size_class) const {
    const PerClass &small = classes_[0], &large = classes_[1];
    if (size_class == kSmallClass) return {small.current, small.peak, small.allocated, small.freed()};
    if (size_class == kLargeClass) return {large.current, large.peak, large.allocated, large.freed()};
    return {small.current + large.current, peak_, small.allocated + large.allocated, small.freed() + large.freed()};
  }

  void reset_peak() {
    for (PerClass& each : classes_) each.peak = each.current;
    peak_ = classes_[0].current + classes_[1].current;
  }

  void reset_accumulated() {
    for (PerClass& each : classes_) each.allocated = 0, each.at_reset = each.current;
  }

 private:
  struct PerClass {
    int64_t current = 0, peak = 0, allocated = 0;
    int64_t at_reset = 0;  // `current` when `allocated` was last reset

    int64_t freed() const { return allocated + at_reset - current; }
  };
  std::array<PerClass, 2> classes_;
  int64_t peak_ = 0;
};

// Highest allocated and reserved bytes since a meter began, and their values at that time.
struct MeterPeaks {
  int64_t allocated, reserved, allocated_before, reserved_before;
};

class Statistics {
 public:
  void add(Metric metric, bool small, int64_t change) {
    counters_[metric].add(small, change);
    if ((metric == kAllocatedBytes || metric == kReservedBytes) && change > 0 && !meters_.empty()) update_meters();
  }

  // Meters are independent of each other and of `reset_peaks`.
  uint64_t begin_meter() {
    const int64_t allocated = read(kAllocatedBytes, kAllSizes).current;
    const int64_t reserved = read(kReservedBytes, kAllSizes).current;
    meters_[++meters_begun_] = {allocated, reserved, allocated, reserved};
    return meters_begun_;
  }

  const MeterPeaks& meter(uint64_t number) const { return meters_.at(number); }
  void end_meter(uint64_t number) { meters_.erase(number); }

  Stat read(Metric metric, SizeClass size_class) const { return counters_[metric].read(size_class); }

  void reset_peaks() {
    for (Counter& counter : counters_) counter.reset_peak();
  }

  void reset_accumulated() {
    for (Counter& counter : counters_) counter.reset_accumulated();
  }

 private:
  void update_meters() {
    for (auto& [number, peaks] : meters_) {
      peaks.allocated = std::max(peaks.allocated, read(kAllocatedBytes, kAllSizes).current);
      peaks.reserved = std::max(peaks.reserved, read(kReservedBytes, kAllSizes).current);
    }
  }

  std::array<Counter, kMetrics> counters_;
  std::map<uint64_t, MeterPeaks> meters_;
  uint64_t meters_begun_ = 0;
};

}  // namespace forebay
