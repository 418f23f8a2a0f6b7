// Times at which the recent work of streams ran: CUPTI reports those of copies, fills and kernels in buffers of
// records, functions of the host are timed where they run. CUPTI's functions are called through pointers, and the
// positions in its records are constants, so neither its headers nor its library is needed to build this.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace forebay::cuda {

inline int64_t host_time() {  // nanoseconds of Python's time.perf_counter_ns
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

struct Span {
  int64_t begin = 0, end = 0;  // 0: unknown
  void widen(int64_t other_begin, int64_t other_end) {
    if (!begin || other_begin < begin) begin = other_begin;
    end = std::max(end, other_end);
  }
};

// Times of the most recent work of one stream, whose pieces have consecutive numbers.
class WorkLog {
 public:
  explicit WorkLog(uint64_t serial) : serial(serial) {}

  void keep(int64_t most) {
    const std::lock_guard<std::mutex> lock(mutex_);
    most_ = std::max(most_, most);
  }

  // Adds a piece, whose number is greater than those before.
  void add(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spans_.empty()) first_ = number;
    while (first_ + static_cast<int64_t>(spans_.size()) <= number) spans_.emplace_back();
    while (static_cast<int64_t>(spans_.size()) > most_) {
      spans_.pop_front();
      ++first_;
    }
  }

  void widen(int64_t number, int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Span* const span = find(number)) span->widen(begin, end);
  }

  // Returns the times of pieces that are among the last `most` ones. If one of them has no end yet, and `update` is
  // set, receives the records of completed work first, once for all pieces.
  std::vector<Span> times(const std::vector<int64_t>& numbers, int64_t most, bool update = false);

  const uint64_t serial;  // identifies the log

 private:
  // Returns true if all pieces that are kept have ended.
  bool look(const std::vector<int64_t>& numbers, int64_t most, std::vector<Span>& found) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t oldest = first_ + static_cast<int64_t>(spans_.size()) - most;
    bool ended = true;
    found.clear();
    for (const int64_t number : numbers) {
      const Span* const span = number < oldest ? nullptr : find(number);
      ended = ended && (!span || span->end);
      found.push_back(span ? *span : Span{});
    }
    return ended;
  }

  Span* find(int64_t number) {
    const bool kept = number >= first_ && number - first_ < static_cast<int64_t>(spans_.size());
    return kept ? &spans_[static_cast<size_t>(number - first_)] : nullptr;
  }

  std::mutex mutex_;
  std::deque<Span> spans_;
  int64_t first_ = 0, most_ = 0;
};

using BufferRequested = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes, size_t used);

struct CuptiFunctions {
  int (*register_callbacks)(BufferRequested, BufferCompleted);
  int (*enable)(int kind);
  int (*disable)(int kind);
  int (*enable_driver_api)(uint32_t function, uint8_t enabled);
  int (*flush)(uint32_t flags);
  int (*next_record)(uint8_t* buffer, size_t used, uint8_t** record);
  int (*push_correlation)(int kind, uint64_t number);
  int (*pop_correlation)(int kind, uint64_t* number);
  int (*timestamp)(uint64_t* nanoseconds);
};

// The records of this process. A number that is pushed around a call of the driver comes back in a record of its own,
// with the number that CUPTI gave to the call, which is also in the records of the work that the call queued.
class Activities {
 public:
  static Activities& get() {
    static auto* const activities = new Activities;  // never deleted: CUPTI may use it while the process ends
    return *activities;
  }

  CuptiFunctions functions{};

  // Starts to log, unless another log is active. Returns CUPTI's code.
  int start() {
    const std::lock_guard<std::mutex> lock(control_);
    if (users_++) return 0;
    set_clock();  // CUPTI may deliver records before the first `update`
    int code = functions.register_callbacks(requested, completed);
    for (const int kind : kKinds) code = code ? code : functions.enable(kind);
    for (const uint32_t function : kDriverFunctions) code = code ? code : functions.enable_driver_api(function, 1);
    if (code) end();
    return code;
  }

  void stop() {
    const std::lock_guard<std::mutex> lock(control_);
    if (users_ == 1)
      end();
    else
      --users_;
  }

  // Receives the records of completed work.
  void update() {
    set_clock();
    functions.flush(0);
  }

  std::shared_ptr<WorkLog> make_log() {
    const std::lock_guard<std::mutex> lock(records_);
    for (auto log = logs_.begin(); log != logs_.end();) log = log->second.expired() ? logs_.erase(log) : ++log;
    const auto made = std::make_shared<WorkLog>(++serial_);
    logs_[made->serial] = made;
    return made;
  }

  void push(const WorkLog& log, int64_t number) {
    functions.push_correlation(kExternal, log.serial << kNumberBits | static_cast<uint64_t>(number));
  }
  void pop() {
    uint64_t number;
    functions.pop_correlation(kExternal, &number);
  }

  // Positions in records, and values of fields.
  static constexpr int kMemcpy = 1, kMemset = 2, kKernel = 10, kPeerCopy = 22, kExternalCorrelation = 39;
  static constexpr size_t kBegin = 16, kEnd = 24;
  static constexpr size_t kKernelCorrelation = 92, kCopyCorrelation = 44, kPeerCopyCorrelation = 60;
  static constexpr size_t kExternalKind = 4, kExternalNumber = 8, kExternalRecordCorrelation = 16;
  static constexpr int kExternal = 5;  // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2; PyTorch uses the first two
  static constexpr uint32_t kForced = 1;
  static constexpr int kKinds[] = {kMemcpy, kMemset, kKernel, kPeerCopy, kExternalCorrelation};
  // cuMemcpyAsync, cuMemsetD8Async, cuLaunchKernel, cuGraphLaunch: records of calls bring those of correlations.
  static constexpr uint32_t kDriverFunctions[] = {306, 216, 307, 514};

 private:
  static constexpr int kNumberBits = 40;
  static constexpr size_t kBufferBytes = size_t{256} << 10, kMostCalls = size_t{1} << 16;

  struct Call {
    uint64_t external = 0;  // 0 while it is not known
    Span span;              // while that is not known
  };

  void end() {
    for (const uint32_t function : kDriverFunctions) functions.enable_driver_api(function, 0);
    for (const int kind : kKinds) functions.disable(kind);
    set_clock();
    functions.flush(kForced);
    users_ = 0;
    const std::lock_guard<std::mutex> lock(records_);
    calls_.clear();
    order_.clear();
  }

  // Compares the clocks. The fastest of several samples is the most exact one, as a thread may be interrupted in
  // others.
  void set_clock() {
    constexpr int kSamples = 5;
    int64_t fastest = INT64_MAX;
    for (int sample = 0; sample < kSamples; ++sample) {
      uint64_t time = 0;
      const int64_t before = host_time();
      if (functions.timestamp(&time)) return;
      const int64_t taken = host_time() - before;
      if (taken >= fastest) continue;
      fastest = taken;
      offset_ = before + taken / 2 - static_cast<int64_t>(time);
    }
  }

  static void requested(uint8_t** buffer, size_t* bytes, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
    *bytes = *buffer ? kBufferBytes : 0;
    *most_records = 0;  // as many as fit
  }

  static void completed(void*, uint32_t, uint8_t* buffer, size_t, size_t used) {
    get().read(buffer, used);
    std::free(buffer);
  }

  void read(uint8_t* buffer, size_t used) {
    const std::lock_guard<std::mutex> lock(records_);
    uint8_t* record = nullptr;
    while (used && !functions.next_record(buffer, used, &record)) {
      switch (field<int>(record, 0)) {
        case kKernel:
          add_work(record, field<uint32_t>(record, kKernelCorrelation));
          break;
        case kMemcpy:
        case kMemset:
          add_work(record, field<uint32_t>(record, kCopyCorrelation));
          break;
        case kPeerCopy:
          add_work(record, field<uint32_t>(record, kPeerCopyCorrelation));
          break;
        case kExternalCorrelation:
          if (field<int>(record, kExternalKind) == kExternal) add_call(record);
          break;
        default:
          break;
      }
    }
  }

  void add_work(const uint8_t* record, uint32_t correlation) {
    const auto begin = field<int64_t>(record, kBegin), end = field<int64_t>(record, kEnd);
    if (!begin || !end) return;  // CUPTI could not measure it
    Call& call = call_of(correlation);
    call.span.widen(begin + offset_, end + offset_);
    if (call.external) deliver(call);
  }

  void add_call(const uint8_t* record) {
    Call& call = call_of(field<uint32_t>(record, kExternalRecordCorrelation));
    const auto external = field<uint64_t>(record, kExternalNumber);
    if (call.external && call.external != external) call.span = {};  // CUPTI's numbers have begun again
    call.external = external;
    if (call.span.end) deliver(call);
  }

  void deliver(const Call& call) {
    const auto found = logs_.find(call.external >> kNumberBits);
    const auto log = found == logs_.end() ? nullptr : found->second.lock();
    const auto number = static_cast<int64_t>(call.external & ((uint64_t{1} << kNumberBits) - 1));
    if (log) log->widen(number, call.span.begin, call.span.end);
  }

  Call& call_of(uint32_t correlation) {
    const auto [found, is_new] = calls_.try_emplace(correlation);
    if (is_new) {
      order_.push_back(correlation);
      if (order_.size() > kMostCalls) {
        calls_.erase(order_.front());
        order_.pop_front();
      }
    }
    return found->second;
  }

  template <typename Field>
  static Field field(const uint8_t* record, size_t at) {
    Field value;
    std::memcpy(&value, record + at, sizeof value);
    return value;
  }

  std::mutex control_;  // of the next one; held during calls of CUPTI
  int users_ = 0;
  std::atomic<int64_t> offset_{0};  // from CUPTI's clock to the host's
  std::mutex records_;              // of everything below; not held during calls of CUPTI but `next_record`
  uint64_t serial_ = 0;
  std::unordered_map<uint64_t, std::weak_ptr<WorkLog>> logs_;  // by serial number
  std::unordered_map<uint32_t, Call> calls_;                   // by CUPTI's number
  std::deque<uint32_t> order_;                                 // of the calls
};

inline std::vector<Span> WorkLog::times(const std::vector<int64_t>& numbers, int64_t most, bool update) {
  std::vector<Span> found;
  if (!look(numbers, most, found) && update) {
    Activities::get().update();
    look(numbers, most, found);
  }
  return found;
}

// A piece of work while it is queued.
class Piece {
 public:
  Piece(std::shared_ptr<WorkLog> log, int64_t number) : log_(std::move(log)) {
    if (!log_) return;
    log_->add(number);
    Activities::get().push(*log_, number);
  }
  ~Piece() {
    if (log_) Activities::get().pop();
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

 private:
  const std::shared_ptr<WorkLog> log_;
};

// A function of the host that is executed once, and timed.
struct TimedCall {
  void (*function)(void*);
  void* argument;
  std::shared_ptr<WorkLog> log;
  int64_t number;

  static void run(void* self) {
    const std::unique_ptr<TimedCall> call(static_cast<TimedCall*>(self));
    const int64_t begin = host_time();
    call->log->widen(call->number, begin, 0);
    call->function(call->argument);
    call->log->widen(call->number, begin, host_time());
  }
};

}  // namespace forebay::cuda
