// Slot in a page of shared memory: the state of an IPC event, or of memory that one process shares with another.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/c_api.hpp"
#include "base/timeline.hpp"

namespace forebay {

// A word identifies one record of an event: its number, counted over all processes, and the process whose queue will
// reach it.
constexpr unsigned kProcessBits = 22;  // the most that Linux process ids need

constexpr uint64_t word_of(uint64_t number, uint64_t process) noexcept { return number << kProcessBits | process; }
constexpr uint64_t number_in(uint64_t word) noexcept { return word >> kProcessBits; }
constexpr uint64_t process_in(uint64_t word) noexcept { return word & ((uint64_t{1} << kProcessBits) - 1); }

// A slot of zeros is unused. Record numbers continue when a slot is reused, so late actions of a process that knew its
// previous use have no effect.
struct alignas(kCacheLine) Slot {
  std::atomic<uint64_t> recorded;  // word of the last record
  std::atomic<uint64_t> reached;   // number of the last record whose work is done
  std::atomic<uint64_t> base;      // word before the first record of the current use
  std::atomic<uint64_t> lease;     // a LeasePhase; above it, the borrower's process and the number of the current use
  std::atomic<uint64_t> borrower_start;  // start time of the borrowing process, or 0
  std::atomic<uint32_t> bell;            // futex word, incremented when a record is reached
};
static_assert(sizeof(Slot) == kCacheLine && std::atomic<uint64_t>::is_always_lock_free, "a slot must not need locks");

enum LeasePhase : uint64_t { kNone, kSent, kBorrowed, kReturned };
constexpr uint64_t lease_of(uint64_t word, LeasePhase phase) noexcept { return word << 8 | phase; }

enum Outcome : int { kReached, kNotYet, kOrphaned = 130 };  // kOrphaned (EOWNERDEAD): the process ended first

// Argument of a slot function that a queue runs; the function deletes it.
struct SlotRequest {
  Slot* slot;
  uint64_t word;
};

}  // namespace forebay

EXPORTED uint64_t forebay_record(forebay::Slot* slot, uint64_t process);  // returns the word of the new record
EXPORTED int forebay_wait(forebay::Slot* slot, uint64_t word, int64_t timeout_ns);  // returns an Outcome
EXPORTED int forebay_claim(forebay::Slot* slot, uint64_t word, uint64_t start);     // 0: not available
EXPORTED forebay::SlotRequest* forebay_new_request(forebay::Slot* slot, uint64_t word);
EXPORTED void forebay_delete_request(forebay::SlotRequest* request);

// To be run by a queue, or called directly. forebay_await fails with kOrphaned.
EXPORTED int forebay_reach(void* request);
EXPORTED int forebay_await(void* request);
EXPORTED int forebay_return(void* request);  // returns the memory claimed with that word

EXPORTED uint64_t forebay_process_start(uint64_t process);  // start time; 0: no such process, or it has ended
