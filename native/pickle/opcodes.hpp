// Reader of the opcodes of an untrusted pickle. It accepts those that create plain values, checks every length against
// the size of the data, and decodes arguments. What is built from them (Python objects, columns) is the caller's
// choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace forebay {

enum PickleKind {
  kPickleStop,
  kPickleNone,
  kPickleTrue,
  kPickleFalse,
  kPickleInt,       // number
  kPickleUnsigned,  // a number of 2^63 or more: the bits of number
  kPickleFloat,     // real
  kPickleFloatText,
  kPickleText,     // text, UTF-8
  kPickleRawText,  // text, raw-unicode-escape
  kPickleMark,
  kPickleTuple,  // number: items, or -1 for those since the mark
  kPickleEmptyList,
  kPickleMarkedList,
  kPickleEmptyDict,
  kPickleMarkedDict,
  kPickleAppend,
  kPickleAppends,
  kPickleSetItem,
  kPickleSetItems,
  kPickleGet,  // number
  kPicklePut,  // number
  kPickleMemoize,
  kPickleOther,  // PROTO, FRAME: without effect
  kPickleForbidden,
  kPickleInvalid,
  kPickleTruncated,
};

class PickleReader {
 public:
  int64_t number = 0;
  double real = 0;
  const char* text = nullptr;
  size_t length = 0;  // of the text

  PickleReader() = default;
  PickleReader(const char* data, size_t size) : data_(data), size_(size) {}

  // A window of a file of which `beyond` bytes follow: kPickleTruncated asks for more of it.
  PickleReader(const char* data, size_t size, uint64_t beyond)
      : data_(data), size_(size), beyond_(beyond), is_window_(true) {}

  bool has_overlong_frame() const { return has_overlong_frame_; }  // of a window: the file is truncated

  size_t at() const { return at_; }         // offset of the next opcode
  size_t opcode() const { return start_; }  // offset of the last opcode

  PickleKind next() {
    start_ = at_;
    if (at_ >= size_) return kPickleTruncated;
    switch (data_[at_++]) {
      case '.':
        return kPickleStop;
      case 'N':
        return kPickleNone;
      case '\x88':
        return kPickleTrue;
      case '\x89':
        return kPickleFalse;
      case '(':
        return kPickleMark;
      case ')':
        return tuple(0);
      case '\x85':
        return tuple(1);
      case '\x86':
        return tuple(2);
      case '\x87':
        return tuple(3);
      case 't':
        return tuple(-1);
      case ']':
        return kPickleEmptyList;
      case 'l':
        return kPickleMarkedList;
      case '}':
        return kPickleEmptyDict;
      case 'd':
        return kPickleMarkedDict;
      case 'a':
        return kPickleAppend;
      case 'e':
        return kPickleAppends;
      case 's':
        return kPickleSetItem;
      case 'u':
        return kPickleSetItems;
      case '\x94':
        return kPickleMemoize;
      case 'h':
        return unsigned_argument(1, kPickleGet);
      case 'j':
        return unsigned_argument(4, kPickleGet);
      case 'q':
        return unsigned_argument(1, kPicklePut);
      case 'r':
        return unsigned_argument(4, kPicklePut);
      case 'g':
        return decimal_line(kPickleGet);
      case 'p':
        return decimal_line(kPicklePut);
      case 'K':
        return unsigned_argument(1, kPickleInt);
      case 'M':
        return unsigned_argument(2, kPickleInt);
      case 'J':
        return signed_argument(4);
      case '\x8a':
        return long_argument();
      case 'I':
        return int_line(true);
      case 'L':
        return int_line(false);
      case 'G':
        return float_argument();
      case 'F':
        return line(kPickleFloatText);
      case 'V':
        return line(kPickleRawText);
      case '\x8c':
        return sized_text(1);
      case 'X':
        return sized_text(4);
      case '\x8d':
        return sized_text(8);
      case '\x95':
        return frame();
      case '\x80':
        return protocol();
      case 'c':
      case 'i':
      case 'o':
      case 'R':
      case 'b':
      case 'P':
      case 'Q':
      case 'B':
      case 'C':
      case '\x81':
      case '\x82':
      case '\x83':
      case '\x84':
      case '\x8e':
      case '\x92':
      case '\x93':
      case '\x96':
      case '\x97':
        return kPickleForbidden;
      default:
        return kPickleInvalid;
    }
  }

 private:
  PickleKind tuple(int64_t items) {
    number = items;
    return kPickleTuple;
  }

  uint64_t little_endian(size_t bytes) const {
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(data_[at_ + i]);
    return value;
  }

  bool has(uint64_t bytes) const { return bytes <= size_ - at_; }

  PickleKind unsigned_argument(size_t bytes, PickleKind kind) {
    if (!has(bytes)) return kPickleTruncated;
    number = static_cast<int64_t>(little_endian(bytes));
    at_ += bytes;
    return kind;
  }

  PickleKind signed_argument(size_t bytes) {  // 1 to 8
    if (!has(bytes)) return kPickleTruncated;
    const unsigned unused = static_cast<unsigned>(64 - 8 * bytes);
    number = static_cast<int64_t>(little_endian(bytes) << unused) >> unused;
    at_ += bytes;
    return kPickleInt;
  }

  PickleKind long_argument() {
    if (!has(1)) return kPickleTruncated;
    const size_t bytes = static_cast<uint8_t>(data_[at_++]);
    if (!has(bytes)) return kPickleTruncated;
    number = 0;
    if (bytes == 0) return kPickleInt;
    if (bytes <= 8) return signed_argument(bytes);
    if (bytes > 9 || data_[at_ + 8] != 0) return kPickleInvalid;  // no number of the schema has more than 64 bits
    number = static_cast<int64_t>(little_endian(8));
    at_ += 9;
    return number < 0 ? kPickleUnsigned : kPickleInt;
  }

  PickleKind float_argument() {
    if (!has(8)) return kPickleTruncated;
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; ++i) bits = bits << 8 | static_cast<uint8_t>(data_[at_ + i]);
    std::memcpy(&real, &bits, sizeof real);
    at_ += 8;
    return kPickleFloat;
  }

  PickleKind sized_text(size_t width) {
    if (!has(width)) return kPickleTruncated;
    const uint64_t bytes = little_endian(width);
    at_ += width;
    if (!has(bytes)) return kPickleTruncated;
    text = data_ + at_;
    length = static_cast<size_t>(bytes);
    at_ += length;
    return kPickleText;
  }

  PickleKind line(PickleKind kind) {
    const void* end = std::memchr(data_ + at_, '\n', size_ - at_);
    if (end == nullptr) return kPickleTruncated;
    text = data_ + at_;
    length = static_cast<size_t>(static_cast<const char*>(end) - text);
    at_ += length + 1;
    return kind;
  }

  PickleKind decimal_line(PickleKind kind) {
    if (line(kind) != kind) return kPickleTruncated;
    return decimal(text, length) && number >= 0 ? kind : kPickleInvalid;
  }

  PickleKind int_line(bool has_booleans) {
    if (line(kPickleInt) != kPickleInt) return kPickleTruncated;
    if (has_booleans && length == 2 && text[0] == '0' && (text[1] == '0' || text[1] == '1')) {
      return text[1] == '1' ? kPickleTrue : kPickleFalse;
    }
    const bool negative = length > 0 && text[0] == '-';
    const bool suffixed = length > 0 && text[length - 1] == 'L';
    if (length < size_t{1} + negative + suffixed) return kPickleInvalid;
    if (!decimal(text + negative, length - negative - suffixed)) return kPickleInvalid;
    const auto value = static_cast<uint64_t>(number);
    if (negative) {
      if (value > uint64_t{1} << 63) return kPickleInvalid;
      number = static_cast<int64_t>(0 - value);
      return kPickleInt;
    }
    return number < 0 ? kPickleUnsigned : kPickleInt;
  }

  // Sets `number` to the bits of an unsigned number of at most 20 digits. Returns false for anything else.
  bool decimal(const char* digits, size_t count) {
    if (count == 0 || count > 20) return false;
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto digit = static_cast<unsigned>(digits[i]) - '0';
      if (digit > 9 || value > (UINT64_MAX - digit) / 10) return false;
      value = value * 10 + digit;
    }
    number = static_cast<int64_t>(value);
    return true;
  }

  PickleKind frame() {
    if (!has(8)) return kPickleTruncated;
    const uint64_t bytes = little_endian(8);
    at_ += 8;
    if (!is_window_) return has(bytes) ? kPickleOther : kPickleTruncated;
    if (bytes > beyond_ && !has(bytes - beyond_)) has_overlong_frame_ = true;
    return kPickleOther;
  }

  PickleKind protocol() {
    if (!has(1)) return kPickleTruncated;
    return static_cast<uint8_t>(data_[at_++]) <= 5 ? kPickleOther : kPickleInvalid;
  }

  const char* data_ = nullptr;
  size_t size_ = 0;
  uint64_t beyond_ = 0;
  bool is_window_ = false;
  bool has_overlong_frame_ = false;
  size_t at_ = 0;
  size_t start_ = 0;
};

}  // namespace forebay
