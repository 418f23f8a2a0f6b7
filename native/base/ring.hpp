// Ring buffer of the newest entries, in order. Its memory grows in chunks as it fills.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace forebay {

template <class Entry>
class Ring {
 public:
  explicit Ring(size_t capacity) : capacity_(capacity == 0 ? 1 : capacity) {
    chunks_.emplace_back(new Entry[std::min(capacity_, kChunk)]);
  }

  void push(const Entry& entry) noexcept { next() = entry; }

  // Returns the slot of the newest entry. If the ring was `full`, the slot still holds the oldest entry. If no memory
  // for another chunk is available, the ring keeps its current size as its capacity.
  Entry& next(bool* full = nullptr) noexcept {
    if (pushed_ < capacity_ && pushed_ == chunks_.size() * kChunk && !grow()) capacity_ = static_cast<size_t>(pushed_);
    if (full) *full = pushed_ >= capacity_;
    const size_t at = static_cast<size_t>(pushed_++ % capacity_);
    return chunks_[at / kChunk][at % kChunk];
  }

  size_t size() const { return pushed_ < capacity_ ? static_cast<size_t>(pushed_) : capacity_; }
  uint64_t lost() const { return pushed_ - size(); }

  const Entry& operator[](size_t age) const {  // 0 is the oldest
    const size_t at = static_cast<size_t>((lost() + age) % capacity_);
    return chunks_[at / kChunk][at % kChunk];
  }

 private:
  static constexpr size_t kChunk = size_t{1} << 14;

  bool grow() noexcept {
    try {
      chunks_.emplace_back(new Entry[kChunk]);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  size_t capacity_;
  uint64_t pushed_ = 0;
  std::vector<std::unique_ptr<Entry[]>> chunks_;
};

}  // namespace forebay
