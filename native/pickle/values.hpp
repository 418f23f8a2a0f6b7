// Values of a pickled history while it is read, and its entries.
#pragma once

#include <cstdint>

#include "pickle/texts.hpp"

namespace forebay {

enum HistoryKind : uint8_t {
  kValueNone,
  kValueFalse,
  kValueTrue,
  kValueInt,
  kValueUnsigned,
  kValueFloat,  // the bits of a double
  kValueText,   // row of the texts
  kValuePair,   // row of the pairs: a tuple of two numbers
  kValueBox,    // row of the boxes: a container
};

enum BoxKind : uint8_t {
  kBoxEmptyDict,
  kBoxEmptyList,
  kBoxDict,   // row of the contents: keys and values
  kBoxList,   // row of the contents
  kBoxTuple,  // row of the contents
  kBoxFrame,  // row of the frames
  kBoxStack,  // row of the stack tree
  kBoxEntry,  // row of the history
  kBoxRows,   // row of the ranges: a list of entries
};

struct HistoryValue {
  uint64_t bits;
  HistoryKind kind;
};

struct HistoryEntry {  // a row of snapshot.model.ENTRY
  uint64_t time_ns, address, nbytes, queue;
  uint32_t stack, action, pool, note;
};

// The known keys of one dict, and their values.
struct Fields {
  uint32_t seen = 0, wrong = 0;  // bits of keys
  uint64_t value[kKeyDetail + 1] = {};
  bool has(Key key) const { return seen >> key & 1; }
  bool is_frame() const {
    constexpr uint32_t kAll = 1u << kKeyFile | 1u << kKeyName | 1u << kKeyLine;
    return (seen & kAll) == kAll && (wrong & kAll) == 0 && !has(kKeyAction) && value[kKeyLine] >> 32 == 0;
  }
  bool has_forward() const {
    constexpr uint32_t kAll = 1u << kKeyFrames | 1u << kKeyForward;
    return (seen & kAll) == kAll && (wrong & kAll) == 0;
  }
  bool is_entry() const {
    constexpr uint32_t kAll = 1u << kKeyAction | 1u << kKeySize;
    constexpr uint64_t kMaxTime = uint64_t{1} << 52;
    return (seen & kAll) == kAll && wrong == 0 && value[kKeyTime] < kMaxTime;
  }
};

}  // namespace forebay
