// The newest entries, up to a number, in order. Memory comes in pieces as the ring fills.
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
  explicit Ring(size_t most) : most_(most == 0 ? 1 : most) { pieces_.emplace_back(new Entry[std::min(most_, kPiece)]); }

  void push(const Entry& entry) noexcept { next() = entry; }

  // The newest one's place. What is there is the oldest entry if the ring was `full`, else nothing yet. Where there is
  // no memory for more the ring stays as long as it got.
  Entry& next(bool* full = nullptr) noexcept {
    if (pushed_ < most_ && pushed_ == pieces_.size() * kPiece && !grow()) most_ = static_cast<size_t>(pushed_);
    if (full) *full = pushed_ >= most_;
    const size_t at = static_cast<size_t>(pushed_++ % most_);
    return pieces_[at / kPiece][at % kPiece];
  }

  size_t size() const { return pushed_ < most_ ? static_cast<size_t>(pushed_) : most_; }
  uint64_t lost() const { return pushed_ - size(); }

  const Entry& operator[](size_t age) const {  // 0 is the oldest
    const size_t at = static_cast<size_t>((lost() + age) % most_);
    return pieces_[at / kPiece][at % kPiece];
  }

 private:
  static constexpr size_t kPiece = size_t{1} << 14;

  bool grow() noexcept {
    try {
      pieces_.emplace_back(new Entry[kPiece]);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  size_t most_;
  uint64_t pushed_ = 0;
  std::vector<std::unique_ptr<Entry[]>> pieces_;
};

}  // namespace forebay
