// The stack of a pickle's values: the memo, and containers in a compact form. Every byte of memory is counted before it
// is used: Note [Objects are counted before they are created].
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pickle/tables.hpp"
#include "pickle/values.hpp"

namespace forebay {

enum HistoryStatus {
  kHistoryMore,  // the window ends inside an opcode
  kHistoryDone,
  kHistoryOdd,
  kHistoryTooLarge,
  kHistoryTooDeep,
  kHistoryInvalid,
  kHistoryForbidden,
};

class ValueStack {
 public:
  uint64_t limit = 0;  // bytes of memory
  uint64_t used = 0;

  explicit ValueStack(uint64_t seed) : pairs_(seed) {}

  HistoryValue root() const { return stack_[0]; }
  BoxKind box_kind(uint64_t row) const { return static_cast<BoxKind>(boxes_[row] >> 56); }
  uint64_t box_row(uint64_t row) const { return boxes_[row] & kRowMask; }
  size_t content_size(uint64_t row) const { return contents_[row]->size(); }
  HistoryValue content(uint64_t row, size_t at) const { return (*contents_[row])[at]; }
  const HistoryValue* content_place(uint64_t row) const { return contents_[row]->data(); }
  const HistoryValue* root_place() const { return stack_.data(); }
  const PairTable& pairs() const { return pairs_; }

  // Frees all but the history and its tables.
  void release_values() {
    memo_.release();
    boxes_.release();
    stack_.release();
    contents_.clear();
  }

 protected:
  static constexpr uint64_t kRowMask = (uint64_t{1} << 48) - 1, kAbsent = ~uint64_t{0};
  static constexpr uint64_t kMaxRows = (uint64_t{1} << 32) - 2;
  static constexpr unsigned kMaxDepth = 100;

  bool fail(HistoryStatus status) {
    status_ = status;
    return false;
  }

  bool charge(uint64_t bytes) {
    used += bytes;
    return used <= limit || fail(kHistoryTooLarge);
  }

  bool push(HistoryKind kind, uint64_t bits) {
    return (stack_.has_room() || charge(stack_.growth())) && stack_.push({bits, kind}) ? true : fail(kHistoryTooLarge);
  }

  size_t floor() const { return marks_.size() > 0 ? marks_[marks_.size() - 1] : 0; }

  bool get(uint64_t at) {
    if (at >= memo_.size() || memo_[at] == kAbsent) return fail(kHistoryInvalid);
    return push(static_cast<HistoryKind>(memo_[at] >> 56), memo_[at] & kRowMask);
  }

  // Picklers memoize only texts and containers, and number them from 0.
  bool put(uint64_t at) {
    if (stack_.size() <= floor()) return fail(kHistoryInvalid);
    const HistoryValue value = stack_[stack_.size() - 1];
    if (value.kind < kValueText || at > memoized_) return fail(kHistoryOdd);
    const uint64_t packed = static_cast<uint64_t>(value.kind) << 56 | value.bits;
    if (at < memoized_) {
      memo_[at] = packed;
      return true;
    }
    ++memoized_;
    return (memo_.has_room() || charge(memo_.growth())) && memo_.push(packed) ? true : fail(kHistoryTooLarge);
  }

  bool push_box(BoxKind kind, uint64_t row, unsigned depth) {
    if (!boxes_.has_room() && !charge(boxes_.growth())) return false;
    if (!boxes_.push(pack(kind, row, depth))) return fail(kHistoryTooLarge);
    return push(kValueBox, boxes_.size() - 1);
  }

  static uint64_t pack(BoxKind kind, uint64_t row, unsigned depth) {
    return static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(depth) << 48 | row;
  }

  unsigned depth(HistoryValue value) const {
    return value.kind == kValueBox ? static_cast<uint8_t>(boxes_[value.bits] >> 48) : 0;
  }

  bool is(HistoryValue value, BoxKind kind) const { return value.kind == kValueBox && box_kind(value.bits) == kind; }

  bool is_dict(HistoryValue value) const { return is(value, kBoxDict) || is(value, kBoxEmptyDict); }

  bool deeper(size_t start, unsigned* result) {
    unsigned deepest = 0;
    for (size_t at = start; at < stack_.size(); ++at) {
      if (depth(stack_[at]) > deepest) deepest = depth(stack_[at]);
    }
    *result = deepest + 1;
    return deepest < kMaxDepth || fail(kHistoryTooDeep);
  }

  bool make_tuple(int64_t items) {
    size_t start = 0;
    if (items >= 0) {
      if (stack_.size() - floor() < static_cast<size_t>(items)) return fail(kHistoryInvalid);
      start = stack_.size() - static_cast<size_t>(items);
    } else {
      if (marks_.size() == 0) return fail(kHistoryInvalid);
      start = marks_.pop();
    }
    if (stack_.size() - start == 2 && is_number(stack_[start]) && is_number(stack_[start + 1])) {
      const uint64_t first = stack_[start].bits, second = stack_[start + 1].bits;
      stack_.shrink(start);
      const int64_t row = intern(pairs_, first, second);
      return row >= 0 && push(kValuePair, static_cast<uint64_t>(row));
    }
    unsigned depth = 0;
    if (!deeper(start, &depth)) return false;
    uint64_t row = 0;
    if (!new_content(start, &row)) return false;
    stack_.shrink(start);
    return push_box(kBoxTuple, row, depth);
  }

  static bool is_number(HistoryValue value) {
    return value.kind == kValueUnsigned || (value.kind == kValueInt && static_cast<int64_t>(value.bits) >= 0);
  }

  // Returns the row of a pair, or -1.
  int64_t intern(PairTable& table, uint64_t first, uint64_t second) {
    const int64_t known = table.find(first, second);
    if (known >= 0) return known;
    if (table.size() >= kMaxRows || !charge(table.cost()) || !table.insert(first, second)) {
      fail(kHistoryTooLarge);
      return -1;
    }
    return static_cast<int64_t>(table.size()) - 1;
  }

  // Moves the values from `start` up into a new content.
  bool new_content(size_t start, uint64_t* row) {
    if (!charge(80)) return false;
    *row = contents_.size();
    contents_.push_back(std::make_unique<Buffer<HistoryValue>>());
    return append_content(*row, start);
  }

  bool append_content(uint64_t row, size_t start) {
    Buffer<HistoryValue>& content = *contents_[row];
    for (size_t at = start; at < stack_.size(); ++at) {
      if (!content.has_room() && !charge(content.growth())) return false;
      if (!content.push(stack_[at])) return fail(kHistoryTooLarge);
    }
    return true;
  }

  bool fill(uint64_t box, size_t start, BoxKind kind) {
    unsigned depth = 0;
    if (!deeper(start, &depth)) return false;
    const BoxKind before = box_kind(box);
    uint64_t row = box_row(box);
    if (before == kind) {
      const unsigned old = static_cast<uint8_t>(boxes_[box] >> 48);
      if (depth < old) depth = old;
      if (!append_content(row, start)) return false;
    } else if (!new_content(start, &row)) {
      return false;
    }
    boxes_[box] = pack(kind, row, depth);
    stack_.shrink(start);
    return true;
  }

  HistoryStatus status_ = kHistoryMore;
  uint64_t memoized_ = 0;
  Buffer<HistoryValue> stack_;
  Buffer<size_t> marks_;
  Buffer<uint64_t> memo_, boxes_;  // packed: kind, depth and row
  std::vector<std::unique_ptr<Buffer<HistoryValue>>> contents_;
  PairTable pairs_;
};

}  // namespace forebay
