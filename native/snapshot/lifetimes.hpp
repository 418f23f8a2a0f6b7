// Lifetimes of allocations, from the entries of a history and the blocks at its end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace forebay {

struct TraceRow {  // a row of records.model.ENTRY
  uint64_t time_ns, address, nbytes, queue;
  uint32_t stack, action, pool, note;
};

struct SegmentRow {  // of SEGMENT
  uint64_t address, nbytes, queue;
  uint32_t stack, small, pool, growing;
};

struct BlockRow {  // of BLOCK
  uint64_t address, nbytes, requested;
  uint32_t stack, segment;
  uint64_t state;
};

// One allocation. It is live at moment m, after the first m entries, if start <= m < end.
struct Lifetime {
  uint64_t address, nbytes, queue;
  uint32_t start, end;  // moments; 0: made before the history, the number of entries + 1: live at the end
  uint32_t stack;       // kNeverSeen: made before the history, which has only the free
  uint32_t pool;
};

constexpr uint32_t kNeverSeen = 0xFFFFFFFF;
constexpr uint32_t kActionAlloc = 1, kActionFreeRequested = 2;
constexpr uint64_t kStateLive = 1;

// Matches each allocation with its free: the next entry for the same address.
//
// A free without an allocation belongs to a block allocated before the history began. An allocation without a free is
// the final live block at its address. If there is no such block, its free was not recorded: it counts until the
// address is allocated again, or until the last moment but one.
//
// The rows are those of the allocations in the history by address, then of frees without one, then of older blocks.
// The segments of the blocks must be valid rows.
inline std::vector<Lifetime> match_lifetimes(const TraceRow* trace, size_t entries, const BlockRow* blocks,
                                             size_t block_count, const SegmentRow* segments) {
  const auto is_alloc = [&](uint32_t row) { return trace[row].action == kActionAlloc; };
  std::vector<std::pair<uint64_t, uint32_t>> rows;  // by address, then by time
  size_t allocations = 0;
  for (size_t row = 0; row < entries; ++row) {
    const uint32_t action = trace[row].action;
    allocations += action == kActionAlloc;
    if (action == kActionAlloc || action == kActionFreeRequested) {
      rows.emplace_back(trace[row].address, static_cast<uint32_t>(row));
    }
  }
  std::sort(rows.begin(), rows.end());

  const auto last = static_cast<uint32_t>(entries);
  std::vector<Lifetime> found;
  std::vector<size_t> latest;  // of the addresses whose last entry is an allocation
  found.reserve(allocations);
  for (size_t at = 0; at < rows.size(); ++at) {
    const auto [address, row] = rows[at];
    if (!is_alloc(row)) continue;
    const bool again = at + 1 < rows.size() && rows[at + 1].first == address;
    if (!again) latest.push_back(found.size());
    const TraceRow& entry = trace[row];
    found.push_back(
        {address, entry.nbytes, entry.queue, row + 1, again ? rows[at + 1].second + 1 : last, entry.stack, entry.pool});
  }
  for (size_t at = 0; at < rows.size(); ++at) {
    const auto [address, row] = rows[at];
    if (is_alloc(row) || (at > 0 && rows[at - 1].first == address && is_alloc(rows[at - 1].second))) continue;
    found.push_back({address, trace[row].nbytes, trace[row].queue, 0, row + 1, kNeverSeen, trace[row].pool});
  }
  for (size_t at = 0; at < block_count; ++at) {
    const BlockRow& block = blocks[at];
    if (block.state != kStateLive) continue;
    const auto where = std::lower_bound(latest.begin(), latest.end(), block.address,
                                        [&](size_t row, uint64_t address) { return found[row].address < address; });
    if (where != latest.end() && found[*where].address == block.address && found[*where].nbytes == block.requested) {
      found[*where].end = last + 1;
      continue;
    }
    const SegmentRow& segment = segments[block.segment];
    found.push_back({block.address, block.requested, segment.queue, 0, last + 1,
                     block.stack == 0 ? kNeverSeen : block.stack, segment.pool});
  }
  return found;
}

}  // namespace forebay
