// The history: the newest entries, up to a number, in order. Memory comes in pieces as the ring fills.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace penstock {

// As snapshot/model.py.
enum class Action : uint32_t { Take = 1, Give, Given, Reserve, Release, Oom, Map, Unmap, Look, Annotate };

struct Entry {
  uint64_t time_ns, address, nbytes, queue;
  uint32_t stack;
  Action action;
  uint32_t home, note;
};
static_assert(sizeof(Entry) == 48, "snapshot/model.py reads entries of 48 bytes");

class Ring {
 public:
  explicit Ring(size_t most) : most_(most == 0 ? 1 : most) { pieces_.emplace_back(new Entry[kPiece]); }

  // Where there is no memory for more the ring stays as long as it got.
  void push(const Entry& entry) noexcept {
    if (pushed_ < most_ && pushed_ == pieces_.size() * kPiece && !grow()) most_ = static_cast<size_t>(pushed_);
    const size_t at = static_cast<size_t>(pushed_++ % most_);
    pieces_[at / kPiece][at % kPiece] = entry;
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

}  // namespace penstock
