// The reader of the viewer page: native/pickle and native/snapshot as functions that JavaScript can call.
//
// JavaScript reads tables and values in place, in the memory of the module. It owns what `allocate` returns. Nothing
// here checks arguments: the caller is report-page/src/viewer/module.ts only.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "pickle/history.hpp"
#include "snapshot/lifetimes.hpp"

#define EXPORTED(name) extern "C" __attribute__((export_name(#name)))

namespace {

using forebay::HistoryReader;
using forebay::PairTable;

static_assert(sizeof(forebay::HistoryValue) == 16 && sizeof(forebay::HistoryEntry) == 48);
static_assert(sizeof(forebay::TraceRow) == 48 && sizeof(forebay::SegmentRow) == 40 && sizeof(forebay::BlockRow) == 40);
static_assert(sizeof(forebay::Lifetime) == 40);

HistoryReader* reader = nullptr;
std::vector<forebay::Lifetime> lifetimes;

const PairTable& table(uint32_t which) {
  switch (which) {
    case 0:
      return reader->pairs();
    case 1:
      return reader->nodes();
    case 2:
      return reader->frames();
    case 3:
      return reader->notes();
    default:
      return reader->details();
  }
}

}  // namespace

EXPORTED(allocate) void* allocate(size_t bytes) { return std::malloc(bytes); }

EXPORTED(release) void release(void* memory) { std::free(memory); }

EXPORTED(begin) void begin(uint64_t seed) {
  delete reader;
  reader = new HistoryReader(seed);
}

EXPORTED(end) void end() {
  delete reader;
  reader = nullptr;
}

EXPORTED(name_action) void name_action(const char* text, size_t length, uint32_t number) {
  reader->name_action(text, length, number);
}

EXPORTED(read) uint32_t read(const char* data, size_t size, uint64_t beyond, uint64_t limit) {
  reader->limit = limit;
  return reader->read(data, size, beyond);
}

EXPORTED(consumed) size_t consumed() { return reader->consumed(); }

EXPORTED(salvage) uint32_t salvage() { return reader->salvage(); }

EXPORTED(root) const void* root() { return reader->root_place(); }

EXPORTED(box_kind) uint32_t box_kind(uint32_t box) { return reader->box_kind(box); }

EXPORTED(box_row) uint32_t box_row(uint32_t box) { return static_cast<uint32_t>(reader->box_row(box)); }

EXPORTED(content_size) size_t content_size(uint32_t row) { return reader->content_size(row); }

EXPORTED(content) const void* content(uint32_t row) { return reader->content_place(row); }

EXPORTED(range_first) size_t range_first(uint32_t row) { return static_cast<size_t>(reader->range(row).first); }

EXPORTED(range_count) size_t range_count(uint32_t row) { return static_cast<size_t>(reader->range(row).count); }

EXPORTED(text_place) const void* text_place(uint32_t row) { return reader->text(row).data(); }

EXPORTED(text_size) size_t text_size(uint32_t row) { return reader->text(row).size(); }

EXPORTED(table_size) size_t table_size(uint32_t which) { return table(which).size(); }

EXPORTED(table_place) const void* table_place(uint32_t which) { return table(which).data(); }

EXPORTED(entries) const void* entries() { return reader->entries(); }

EXPORTED(entry_count) size_t entry_count() { return reader->count(); }

EXPORTED(match)
size_t match(const forebay::TraceRow* trace, size_t entries, const forebay::BlockRow* blocks, size_t block_count,
             const forebay::SegmentRow* segments) {
  lifetimes = forebay::match_lifetimes(trace, entries, blocks, block_count, segments);
  return lifetimes.size();
}

EXPORTED(forget) void forget() { lifetimes = {}; }

EXPORTED(matched) const void* matched() { return lifetimes.data(); }
