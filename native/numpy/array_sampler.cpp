#include "numpy/array_sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "pool/policy.hpp"

namespace forebay {
namespace {

constexpr size_t kMinSlots = 256;
constexpr uint64_t kFirstAddress = 1 << 20;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr uint64_t kQueue = 0;

}  // namespace

ArraySampler::ArraySampler() : left_(kNever) {
  tables_.push_back(std::make_unique<Table>(kMinSlots));
  table_ = tables_.back().get();
}

void ArraySampler::start(Pool* pool, uint64_t mean, uint64_t seed) {
  PoolLock lock(mutex_);
  tables_.push_back(std::make_unique<Table>(kMinSlots));
  table_ = tables_.back().get();
  count_ = 0;
  pool_ = pool;
  mean_ = mean;
  random_ = seed;
  next_address_ = kFirstAddress;
  draw();
}

// The generator splitmix64, as a number in (0, 1].
double ArraySampler::next_random() {
  uint64_t z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>((z >> 11) + 1) * 0x1p-53;
}

void ArraySampler::draw() {
  left_ = mean_ == 0 ? kNever : static_cast<int64_t>(-std::log(next_random()) * static_cast<double>(mean_));
}

void ArraySampler::add(void* memory, size_t size, uint32_t stack) {
  PoolLock lock(mutex_);
  if (mean_ == 0) return;
  const double share = -std::expm1(-static_cast<double>(size) / static_cast<double>(mean_));
  const auto estimate = static_cast<uint64_t>(std::llround(static_cast<double>(size) / share));
  const uint64_t rounded = round_up(estimate, kMinBlockSize);
  if ((count_ + 1) * 4 > table_.load()->slots.size()) grow();
  Block* block = pool_->adopt_and_allocate(estimate, next_address_, rounded, kQueue, stack, 0);
  next_address_ += rounded;
  if (block == nullptr) return;
  table_.load()->put(memory, block);
  ++count_;
}

void ArraySampler::remove(void* memory) {
  PoolLock lock(mutex_);
  Table* table = table_.load();
  Slot* found = table->find(memory);
  if (found == nullptr) return;
  Block* block = found->block;
  table->erase(found);
  --count_;
  const uint64_t address = block->address;
  pool_->free(block);
  pool_->evict(address);
}

void ArraySampler::grow() {
  const Table& old = *table_.load();
  auto grown = std::make_unique<Table>(old.slots.size() * 2);
  for (const Slot& slot : old.slots) {
    if (void* memory = slot.memory.load(std::memory_order_relaxed)) grown->put(memory, slot.block);
  }
  tables_.push_back(std::move(grown));
  table_.store(tables_.back().get(), std::memory_order_release);
}

void ArraySampler::Table::put(void* memory, Block* block) {
  size_t at = home_slot(memory);
  while (slots[at].memory.load(std::memory_order_relaxed) != nullptr) at = (at + 1) & mask();
  slots[at].block = block;
  slots[at].memory.store(memory, std::memory_order_relaxed);
}

ArraySampler::Slot* ArraySampler::Table::find(const void* memory) {
  for (size_t at = home_slot(memory);; at = (at + 1) & mask()) {
    void* there = slots[at].memory.load(std::memory_order_relaxed);
    if (there == nullptr) return nullptr;
    if (there == memory) return &slots[at];
  }
}

// Moves later entries of the probe run back over the hole. The first slot of a run never becomes empty while it has
// entries, as each hole is overwritten at once: `may_have` reads that slot without the mutex.
void ArraySampler::Table::erase(Slot* found) {
  auto hole = static_cast<size_t>(found - slots.data());
  for (size_t at = (hole + 1) & mask();; at = (at + 1) & mask()) {
    void* there = slots[at].memory.load(std::memory_order_relaxed);
    if (there == nullptr) break;
    if (((at - home_slot(there)) & mask()) >= ((at - hole) & mask())) {
      slots[hole].block = slots[at].block;
      slots[hole].memory.store(there, std::memory_order_relaxed);
      hole = at;
    }
  }
  slots[hole].memory.store(nullptr, std::memory_order_relaxed);
  slots[hole].block = nullptr;
}

}  // namespace forebay
