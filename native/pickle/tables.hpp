// Tables of the history reader: an array that grows in place, and rows of distinct pairs of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

namespace forebay {

// An array of plain values over realloc, which moves large arrays without copying them.
template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T& operator[](size_t at) { return data_[at]; }
  const T& operator[](size_t at) const { return data_[at]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool has_room() const { return size_ < room_; }

  // Bytes that the next growth adds.
  size_t growth() const { return added() * sizeof(T); }

  // Returns false if there is no memory.
  bool push(T value) {
    if (size_ == room_) {
      const size_t larger = room_ + added();
      if (larger > SIZE_MAX / sizeof(T)) return false;  // of 32 bits, in WebAssembly
      void* moved = std::realloc(data_, larger * sizeof(T));
      if (moved == nullptr) return false;
      data_ = static_cast<T*>(moved);
      room_ = larger;
    }
    data_[size_++] = value;
    return true;
  }

  T pop() { return data_[--size_]; }
  void shrink(size_t size) { size_ = size; }

  void release() {
    std::free(data_);
    data_ = nullptr;
    size_ = room_ = 0;
  }

 private:
  size_t added() const { return room_ / 2 + (sizeof(T) > 8 ? 4 : 64); }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t room_ = 0;
};

// Consecutive numbers for distinct pairs. The hash depends on a seed, so that no file can choose pairs that collide.
class PairTable {
 public:
  struct Pair {
    uint64_t first, second;
  };

  explicit PairTable(uint64_t seed) : seed_(seed) {}
  PairTable(const PairTable&) = delete;
  PairTable& operator=(const PairTable&) = delete;
  ~PairTable() { std::free(slots_); }

  size_t size() const { return pairs_.size(); }
  Pair operator[](size_t row) const { return pairs_[row]; }
  const Pair* data() const { return pairs_.data(); }
  static constexpr size_t cost() { return 2 * sizeof(Pair) + 6 * sizeof(uint32_t); }  // an upper bound, growth included

  // Returns the row of a pair, or -1.
  int64_t find(uint64_t first, uint64_t second) const {
    if (room_ == 0) return -1;
    for (size_t at = hash(first, second) & (room_ - 1); slots_[at] != 0; at = (at + 1) & (room_ - 1)) {
      const Pair& pair = pairs_[slots_[at] - 1];
      if (pair.first == first && pair.second == second) return static_cast<int64_t>(slots_[at]) - 1;
    }
    return -1;
  }

  // Adds a pair that the table lacks. Returns false if there is no memory.
  bool insert(uint64_t first, uint64_t second) {
    if (2 * (pairs_.size() + 1) > room_ && !enlarge()) return false;
    if (!pairs_.push({first, second})) return false;
    place(pairs_.size());
    return true;
  }

 private:
  size_t hash(uint64_t first, uint64_t second) const {
    return static_cast<size_t>(mix(mix(first ^ seed_) + second + (seed_ << 1 | 1)));
  }

  static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93u;
    value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93u;
    return value ^ (value >> 32);
  }

  void place(size_t number) {
    const Pair& pair = pairs_[number - 1];
    size_t at = hash(pair.first, pair.second) & (room_ - 1);
    while (slots_[at] != 0) at = (at + 1) & (room_ - 1);
    slots_[at] = static_cast<uint32_t>(number);
  }

  bool enlarge() {
    const size_t room = room_ == 0 ? 64 : 2 * room_;
    void* fresh = std::calloc(room, sizeof(uint32_t));
    if (fresh == nullptr) return false;
    std::free(slots_);
    slots_ = static_cast<uint32_t*>(fresh);
    room_ = room;
    for (size_t number = 1; number <= pairs_.size(); ++number) place(number);
    return true;
  }

  uint64_t seed_;
  Buffer<Pair> pairs_;
  uint32_t* slots_ = nullptr;  // rows, from 1
  size_t room_ = 0;            // a power of two
};

}  // namespace forebay
