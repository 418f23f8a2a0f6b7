// Reader of a pickled memory history: dicts of entries become rows while they are read, lists of frames become rows of
// a tree, and all other values stay in a compact form. Input comes in windows, so that a file never is in memory as a
// whole. Every byte of memory is counted before it is used. What has another shape than PyTorch writes is `kOdd`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pickle/opcodes.hpp"
#include "pickle/tables.hpp"
#include "pickle/texts.hpp"
#include "pickle/value_stack.hpp"
#include "pickle/values.hpp"

namespace forebay {

struct HistoryRange {
  uint64_t first, count;
};

class HistoryReader : public ValueStack {
 public:
  static constexpr uint32_t kHasPool = 1u << 16;    // added to an entry's action
  static constexpr uint64_t kNoFrame = 0xFFFFFFFF;  // of a stack that has forward frames only; also: no key

  explicit HistoryReader(uint64_t seed) : ValueStack(seed), nodes_(seed), frames_(seed), notes_(seed), details_(seed) {}

  // Gives the word of an action its number.
  void name_action(const char* text, size_t length, uint32_t number) {
    texts_.name_action({text, length}, number);
    if (std::string_view(text, length) == "oom") oom_ = number;
  }

  // Executes the opcodes of a window of the file; `beyond` bytes follow it. `consumed()` tells how many bytes are done.
  HistoryStatus read(const char* data, size_t size, uint64_t beyond) {
    PickleReader reader(data, size, beyond);
    for (;;) {
      const PickleKind kind = reader.next();
      if (kind == kPickleTruncated) {
        consumed_ = reader.opcode();
        overlong_ |= reader.has_overlong_frame();
        return kHistoryMore;
      }
      if (kind == kPickleStop) {
        consumed_ = reader.at();
        overlong_ |= reader.has_overlong_frame();
        return marks_.size() == 0 && stack_.size() == 1 && !overlong_ ? kHistoryDone : kHistoryInvalid;
      }
      if (!execute(kind, reader)) {
        consumed_ = reader.opcode();
        return status_;
      }
    }
  }

  size_t consumed() const { return consumed_; }

  // Ends a truncated pickle: closes the lists and the outermost dict, and drops what is incomplete. Returns false if
  // nothing is left.
  bool salvage() {
    while (marks_.size() > 0) {
      const size_t start = marks_.pop();
      if (start == 0 || start > stack_.size()) return false;
      const HistoryValue target = stack_[start - 1];
      const bool dict = is_dict(target);
      if (dict && start != 1) {
        stack_.shrink(start - 1);
      } else if (dict) {
        if (!append_pending(start)) return false;
        if ((stack_.size() - start) % 2 != 0) stack_.shrink(stack_.size() - 1);
        if (!update(start)) return false;
      } else {
        stack_.shrink(start + alike(start));
        if (!extend(start)) return false;
      }
    }
    if (stack_.size() > 1) stack_.shrink(1);
    return stack_.size() == 1;
  }

  const std::string& text(uint64_t row) const { return texts_[row]; }
  HistoryRange range(uint64_t row) const { return ranges_[row]; }
  const PairTable& nodes() const { return nodes_; }      // forward frames and parent, frame or kNoFrame; from row 1
  const PairTable& frames() const { return frames_; }    // file and name in one number, details and line
  const PairTable& notes() const { return notes_; }      // compile_context, internal_metadata and user_metadata
  const PairTable& details() const { return details_; }  // chains, from 1: the previous pair and a key, text
  HistoryEntry* entries() { return entries_.data(); }
  size_t count() const { return entries_.size(); }
  size_t texts() const { return texts_.size(); }

 private:
  bool execute(PickleKind kind, PickleReader& reader) {
    switch (kind) {
      case kPickleGet:
        return get(static_cast<uint64_t>(reader.number));
      case kPickleInt:
        return push(kValueInt, static_cast<uint64_t>(reader.number));
      case kPickleUnsigned:
        return push(kValueUnsigned, static_cast<uint64_t>(reader.number));
      case kPickleMemoize:
        return put(memoized_);
      case kPicklePut:
        return put(static_cast<uint64_t>(reader.number));
      case kPickleText:
        return push_text({reader.text, reader.length});
      case kPickleMark:
        return (marks_.has_room() || charge(marks_.growth())) && marks_.push(stack_.size()) ? true
                                                                                            : fail(kHistoryTooLarge);
      case kPickleEmptyDict:
        return push_box(kBoxEmptyDict, 0, 1);
      case kPickleEmptyList:
        return push_box(kBoxEmptyList, 0, 1);
      case kPickleSetItems:
        return marks_.size() > 0 ? update(marks_.pop()) : fail(kHistoryInvalid);
      case kPickleSetItem:
        return stack_.size() - floor() >= 3 ? update(stack_.size() - 2) : fail(kHistoryInvalid);
      case kPickleAppends:
        return marks_.size() > 0 ? extend(marks_.pop()) : fail(kHistoryInvalid);
      case kPickleAppend:
        return stack_.size() - floor() >= 2 ? extend(stack_.size() - 1) : fail(kHistoryInvalid);
      case kPickleTuple:
        return make_tuple(reader.number);
      case kPickleNone:
        return push(kValueNone, 0);
      case kPickleTrue:
        return push(kValueTrue, 0);
      case kPickleFalse:
        return push(kValueFalse, 0);
      case kPickleFloat: {
        uint64_t bits;
        std::memcpy(&bits, &reader.real, sizeof bits);
        return push(kValueFloat, bits);
      }
      case kPickleOther:
        return true;
      case kPickleForbidden:
        return fail(kHistoryForbidden);
      case kPickleInvalid:
        return fail(kHistoryInvalid);
      default:
        return fail(kHistoryOdd);
    }
  }

  bool push_text(std::string_view text) {
    int64_t row = texts_.find(text);
    if (row < 0) {
      if (!charge(TextTable::cost(text)) || texts_.size() >= kMaxRows) return fail(kHistoryTooLarge);
      row = texts_.insert(text);
    }
    return push(kValueText, static_cast<uint64_t>(row));
  }

  // Appends the only item of a list to it, where the opcode for that is missing: all after the last key of a dict.
  bool append_pending(size_t start) {
    size_t key = start;
    while (key + 2 < stack_.size() && stack_[key + 2].kind == kValueText) key += 2;
    while (stack_.size() > key + 2) {
      const size_t last = stack_.size() - 1;
      if (family(stack_[last - 1]) == kBoxList && family(stack_[last]) == kBoxList) {
        if (!extend(last)) return false;
      } else if (is(stack_[last - 1], kBoxEmptyList) && is(stack_[last], kBoxEntry)) {
        if (!extend(last)) return false;
      } else {
        stack_.shrink(last);
      }
    }
    return true;
  }

  // Returns how many of the values from `start` up are like the first: the complete items of a truncated list.
  size_t alike(size_t start) const {
    size_t count = 0;
    while (start + count < stack_.size() && family(stack_[start + count]) == family(stack_[start])) ++count;
    return count;
  }

  int family(HistoryValue value) const {
    if (value.kind != kValueBox) return -1;
    const BoxKind kind = box_kind(value.bits);
    return kind == kBoxEmptyList || kind == kBoxRows ? kBoxList : kind;
  }

  bool extend(size_t start) {
    if (start <= floor() || start > stack_.size() || stack_[start - 1].kind != kValueBox) return fail(kHistoryInvalid);
    const uint64_t box = stack_[start - 1].bits;
    if (stack_.size() == start) return box_kind(box) != kBoxDict || fail(kHistoryInvalid);
    switch (box_kind(box)) {
      case kBoxEmptyList:
        if (is(stack_[start], kBoxFrame)) return close_stack(box, start);
        if (is(stack_[start], kBoxEntry)) return begin_rows(box, start);
        return fill(box, start, kBoxList);
      case kBoxRows:
        return extend_rows(box, start);
      case kBoxList:
        return fill(box, start, kBoxList);
      case kBoxStack:
        return fail(kHistoryOdd);
      default:
        return fail(kHistoryInvalid);
    }
  }

  bool close_stack(uint64_t box, size_t start) {
    uint64_t row = 0;
    for (size_t at = stack_.size(); at-- > start;) {
      if (!is(stack_[at], kBoxFrame)) return fail(kHistoryOdd);
      const int64_t found = intern(nodes_, row, box_row(stack_[at].bits));
      if (found < 0) return false;
      row = static_cast<uint64_t>(found) + 1;
    }
    boxes_[box] = pack(kBoxStack, row, 2);
    stack_.shrink(start);
    return true;
  }

  bool begin_rows(uint64_t box, size_t start) {
    if (!charge(64)) return false;
    const uint64_t first = box_row(stack_[start].bits);
    if (!ranges_.empty() && first < ranges_.back().first + ranges_.back().count) return fail(kHistoryOdd);
    ranges_.push_back({first, 0});
    boxes_[box] = pack(kBoxRows, ranges_.size() - 1, 3);
    return extend_rows(box, start);
  }

  // Entries in another order than they were read, or in two lists, are odd.
  bool extend_rows(uint64_t box, size_t start) {
    if (box_row(box) + 1 != ranges_.size()) return fail(kHistoryOdd);
    HistoryRange& range = ranges_.back();
    for (size_t at = start; at < stack_.size(); ++at) {
      if (!is(stack_[at], kBoxEntry) || box_row(stack_[at].bits) != range.first + range.count) return fail(kHistoryOdd);
      ++range.count;
    }
    stack_.shrink(start);
    return true;
  }

  bool update(size_t start) {
    if (start <= floor() || start > stack_.size() || (stack_.size() - start) % 2 != 0) return fail(kHistoryInvalid);
    const HistoryValue target = stack_[start - 1];
    if (target.kind != kValueBox) return fail(kHistoryInvalid);
    if (!is_dict(target)) return fail(is(target, kBoxEntry) || is(target, kBoxFrame) ? kHistoryOdd : kHistoryInvalid);
    for (size_t at = start; at < stack_.size(); at += 2) {
      if (stack_[at].kind == kValueText) continue;
      if (!is_number(stack_[at]) || stack_[at].bits >> 32 != 0) return fail(kHistoryOdd);
    }
    if (stack_.size() == start) return true;
    if (is(target, kBoxEmptyDict)) {
      Fields fields;
      collect(start, &fields);
      if (fields.is_frame()) return close_frame(target.bits, start, fields);
      if (fields.is_entry()) return close_entry(target.bits, start, fields);
      if (fields.has_forward() && !attach_forward(start, fields)) return false;
    }
    return fill(target.bits, start, kBoxDict);
  }

  // Collects the known keys of a dict and the values that have the type of the schema.
  void collect(size_t start, Fields* fields) const {
    for (size_t at = start; at < stack_.size(); at += 2) {
      if (stack_[at].kind != kValueText) continue;
      const Key key = texts_.key(stack_[at].bits);
      if (key == kKeyOther) continue;
      const HistoryValue value = stack_[at + 1];
      const uint32_t bit = 1u << key;
      bool right = false;
      uint64_t bits = value.bits;
      switch (key) {
        case kKeyAction:
        case kKeyContext:
        case kKeyUser:
        case kKeyFile:
        case kKeyName:
        case kKeyInternal:
          right = value.kind == kValueText;
          break;
        case kKeyDetail:
          right = true;  // `close_frame` collects them
          break;
        case kKeyForward:
          right = is(value, kBoxEmptyList) || (is(value, kBoxList) && has_texts_only(box_row(value.bits)));
          if (right) bits = is(value, kBoxList) ? box_row(value.bits) + 1 : 0;
          break;
        case kKeyFrames:
          right = is(value, kBoxStack) || is(value, kBoxEmptyList);
          if (right) bits = box_row(value.bits);
          break;
        case kKeyPool:
          right = value.kind == kValuePair;
          break;
        default:
          right = is_number(value);
      }
      fields->seen |= bit;
      fields->wrong = right ? fields->wrong & ~bit : fields->wrong | bit;
      fields->value[key] = bits;
    }
  }

  bool has_texts_only(uint64_t row) const {
    for (size_t at = 0; at < content_size(row); ++at) {
      if (content(row, at).kind != kValueText) return false;
    }
    return true;
  }

  // Adds one text to a chain, and makes `chain` the number of the longer one.
  bool lengthen(uint64_t* chain, uint64_t key, uint64_t text) {
    const int64_t row = intern(details_, *chain << 32 | key, text);
    *chain = static_cast<uint64_t>(row) + 1;
    return row >= 0;
  }

  // Makes `row` that of the same stack with the forward frames of a dict.
  bool add_forward(const Fields& fields, uint64_t* row) {
    uint64_t chain = 0;
    const uint64_t texts = fields.has(kKeyForward) ? fields.value[kKeyForward] : 0;
    for (size_t at = 0; texts != 0 && at < content_size(texts - 1); ++at) {
      if (!lengthen(&chain, kNoFrame, content(texts - 1, at).bits)) return false;
    }
    if (chain == 0) return true;
    const PairTable::Pair node = *row == 0 ? PairTable::Pair{0, kNoFrame} : nodes_[*row - 1];
    const int64_t found = intern(nodes_, chain << 32 | (node.first & kNoFrame), node.second);
    *row = static_cast<uint64_t>(found) + 1;
    return found >= 0;
  }

  // Gives the frames of a block its forward frames.
  bool attach_forward(size_t start, const Fields& fields) {
    uint64_t row = fields.value[kKeyFrames];
    if (!add_forward(fields, &row)) return false;
    for (size_t at = start; at < stack_.size(); at += 2) {
      if (stack_[at].kind != kValueText || texts_.key(stack_[at].bits) != kKeyFrames) continue;
      if (!boxes_.has_room() && !charge(boxes_.growth())) return false;
      if (!boxes_.push(pack(row == 0 ? kBoxEmptyList : kBoxStack, row, 2))) return fail(kHistoryTooLarge);
      stack_[at + 1] = {boxes_.size() - 1, kValueBox};
    }
    return true;
  }

  bool close_frame(uint64_t box, size_t start, const Fields& fields) {
    uint64_t details = 0;
    for (size_t at = start; fields.has(kKeyDetail) && at < stack_.size(); at += 2) {
      if (stack_[at].kind != kValueText || texts_.key(stack_[at].bits) != kKeyDetail) continue;
      if (stack_[at + 1].kind == kValueText && !lengthen(&details, stack_[at].bits, stack_[at + 1].bits)) return false;
    }
    const uint64_t names = fields.value[kKeyFile] << 32 | fields.value[kKeyName];
    const int64_t row = intern(frames_, names, details << 32 | fields.value[kKeyLine]);
    if (row < 0) return false;
    boxes_[box] = pack(kBoxFrame, static_cast<uint64_t>(row), 1);
    stack_.shrink(start);
    return true;
  }

  bool close_entry(uint64_t box, size_t start, const Fields& fields) {
    HistoryEntry entry = {};
    entry.time_ns = fields.value[kKeyTime] * 1000;
    entry.nbytes = fields.value[kKeySize];
    entry.queue = fields.value[kKeyStream];
    uint64_t stack = fields.value[kKeyFrames];
    if (!add_forward(fields, &stack)) return false;
    entry.stack = static_cast<uint32_t>(stack);
    entry.action = texts_.action(fields.value[kKeyAction]);
    entry.address = fields.value[entry.action == oom_ ? kKeyFree : kKeyAddress];
    if (fields.has(kKeyPool)) {
      entry.action |= kHasPool;
      entry.pool = static_cast<uint32_t>(fields.value[kKeyPool]) + 1;  // of the pairs, from 1
    }
    if (fields.has(kKeyContext) || fields.has(kKeyUser) || fields.has(kKeyInternal)) {
      const uint64_t context = fields.has(kKeyContext) ? fields.value[kKeyContext] + 1 : 0;
      const uint64_t internal = fields.has(kKeyInternal) ? fields.value[kKeyInternal] + 1 : 0;
      const uint64_t user = fields.has(kKeyUser) ? fields.value[kKeyUser] + 1 : 0;
      const int64_t note = intern(notes_, context, internal << 32 | user);
      if (note < 0) return false;
      entry.note = static_cast<uint32_t>(note) + 1;
    }
    if (!entries_.has_room() && !charge(entries_.growth())) return false;
    if (!entries_.push(entry)) return fail(kHistoryTooLarge);
    boxes_[box] = pack(kBoxEntry, entries_.size() - 1, 2);
    stack_.shrink(start);
    return true;
  }

  size_t consumed_ = 0;
  bool overlong_ = false;  // a frame is longer than the file
  uint32_t oom_ = ~0u;
  Buffer<HistoryEntry> entries_;
  std::vector<HistoryRange> ranges_;
  PairTable nodes_, frames_, notes_, details_;
  TextTable texts_;
};

}  // namespace forebay
