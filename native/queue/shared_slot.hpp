// What two processes know of an event, and of memory that one lends the other: a slot of a page that both have mapped.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/exported.hpp"
#include "base/timeline.hpp"

namespace forebay {

// A word names one record of an event: its number, counted over all processes, and the process whose queue reaches it.
constexpr unsigned kProcessBits = 22;  // Linux has no more processes

constexpr uint64_t word_of(uint64_t number, uint64_t process) noexcept { return number << kProcessBits | process; }
constexpr uint64_t number_in(uint64_t word) noexcept { return word >> kProcessBits; }
constexpr uint64_t process_in(uint64_t word) noexcept { return word & ((uint64_t{1} << kProcessBits) - 1); }

// Of all zeros it is one that nobody has used. Numbers go on when it is used again, so what a process that knew it
// before still does comes too late to be seen.
struct alignas(kCacheLine) Slot {
  std::atomic<uint64_t> recorded;  // a word, of the last record
  std::atomic<uint64_t> reached;   // the number of the last record whose work is done
  std::atomic<uint64_t> base;      // the word before the first record of its present use
  std::atomic<uint64_t> lease;     // a Phase, above it the borrower's process and the number of this use
  std::atomic<uint64_t> since;     // when the borrower started, or 0
  std::atomic<uint32_t> bell;      // rung when something is reached
};
static_assert(sizeof(Slot) == kCacheLine && std::atomic<uint64_t>::is_always_lock_free, "processes share no locks");

enum Phase : uint64_t { kNone, kSent, kBorrowed, kReturned };  // of memory
constexpr uint64_t lease_of(uint64_t word, Phase phase) noexcept { return word << 8 | phase; }

enum Outcome : int { kReached, kNotYet, kOrphaned = 130 };  // EOWNERDEAD: the process ended before it got there

// What a queue has to do about a slot; whoever runs it ends it.
struct Errand {
  Slot* slot;
  uint64_t word;
};

}  // namespace forebay

EXPORTED uint64_t forebay_record(forebay::Slot* slot, uint64_t process);            // the word of a new record
EXPORTED int forebay_wait(forebay::Slot* slot, uint64_t word, int64_t timeout_ns);  // an Outcome
EXPORTED int forebay_claim(forebay::Slot* slot, uint64_t word, uint64_t since);     // 0: it is not there to be claimed
EXPORTED forebay::Errand* forebay_errand(forebay::Slot* slot, uint64_t word);
EXPORTED void forebay_drop_errand(forebay::Errand* errand);

// For queues, or at once. The second one's failure is kOrphaned.
EXPORTED int forebay_reach(void* errand);
EXPORTED int forebay_await(void* errand);
EXPORTED int forebay_give_back(void* errand);  // memory, claimed by that word

EXPORTED uint64_t forebay_since(uint64_t process);  // when it started; 0: it ended, be it a zombie, or never was
