// Times of work, from the records of a stand-in for CUPTI that a test writes one by one.
#include <thread>
#include <vector>

#include "check.hpp"
#include "cuda/work_log.hpp"

using namespace forebay::cuda;

namespace {

constexpr size_t kRecord = 128;  // bytes of each record
BufferRequested requested = nullptr;
BufferCompleted completed = nullptr;
int64_t ahead = 1'000'000'000'000;          // nanoseconds from the host's clock to CUPTI's
std::vector<std::vector<uint8_t>> records;  // that the next flush delivers
std::vector<uint64_t> pushed;
std::vector<int> enabled;
int failure = 0, flushes = 0;

template <typename Field>
void set(std::vector<uint8_t>& record, size_t at, Field value) {
  std::memcpy(record.data() + at, &value, sizeof value);
}

void add_work(int kind, uint32_t correlation, int64_t begin, int64_t end) {
  std::vector<uint8_t> record(kRecord);
  set(record, 0, kind);
  set(record, Activities::kBegin, begin ? begin + ahead : 0);
  set(record, Activities::kEnd, end ? end + ahead : 0);
  set(record,
      kind == Activities::kKernel     ? Activities::kKernelCorrelation
      : kind == Activities::kPeerCopy ? Activities::kPeerCopyCorrelation
                                      : Activities::kCopyCorrelation,
      correlation);
  records.push_back(record);
}

void add_call(uint32_t correlation, uint64_t number, int kind = Activities::kExternal) {
  std::vector<uint8_t> record(kRecord);
  set(record, 0, Activities::kExternalCorrelation);
  set(record, Activities::kExternalKind, kind);
  set(record, Activities::kExternalNumber, number);
  set(record, Activities::kExternalRecordCorrelation, correlation);
  records.push_back(record);
}

int add_callbacks(BufferRequested first, BufferCompleted second) {
  requested = first;
  completed = second;
  return 0;
}
int enable(int kind) {
  if (failure) return failure;
  enabled.push_back(kind);
  return 0;
}
int disable(int) {
  enabled.clear();
  return 0;
}
int enable_driver_api(uint32_t, uint8_t) { return 0; }
void deliver() {  // also done by CUPTI when a buffer is full
  uint8_t* buffer = nullptr;
  size_t bytes = 0, most = 1, used = 0;
  requested(&buffer, &bytes, &most);
  CHECK(buffer && most == 0 && bytes >= records.size() * kRecord);
  for (const auto& record : records) {
    std::memcpy(buffer + used, record.data(), kRecord);
    used += kRecord;
  }
  records.clear();
  completed(nullptr, 0, buffer, bytes, used);
}
int flush(uint32_t) {
  ++flushes;
  deliver();
  return 0;
}
int next_record(uint8_t* buffer, size_t used, uint8_t** record) {
  uint8_t* const next = *record ? *record + kRecord : buffer;
  if (next >= buffer + used) return 1;
  *record = next;
  return 0;
}
int push(int kind, uint64_t number) {
  CHECK(kind == Activities::kExternal);
  pushed.push_back(number);
  return 0;
}
int pop(int, uint64_t*) { return 0; }
int timestamp(uint64_t* time) {
  *time = static_cast<uint64_t>(host_time() + ahead);
  return 0;
}

// Returns the activities of the process, on the stand-in, and what it was given for a queued piece of work.
Activities& activities() {
  Activities::get().functions = {add_callbacks, enable, disable, enable_driver_api, flush,
                                 next_record,   push,   pop,     timestamp};
  return Activities::get();
}
uint64_t queue(const std::shared_ptr<WorkLog>& log, int64_t number) {
  const Piece piece(log, number);
  return pushed.back();
}
Span times_of(WorkLog& log, int64_t number, int64_t most) { return log.times({number}, most)[0]; }
bool is_near(int64_t time, int64_t expected) { return std::abs(time - expected) < 1'000'000; }

}  // namespace

TEST(records_are_assigned_to_the_work_of_their_call_in_any_order) {
  Activities& all = activities();
  CHECK(all.start() == 0 && enabled.size() == std::size(Activities::kKinds));
  const auto log = all.make_log(), other = all.make_log();
  log->keep(10);
  other->keep(10);
  const uint64_t copy = queue(log, 1), kernel = queue(log, 2), graph = queue(other, 1);
  const int64_t now = host_time();
  add_call(11, copy);
  add_work(Activities::kMemcpy, 11, now, now + 10'000'000);
  add_work(Activities::kKernel, 12, now + 20'000'000, now + 30'000'000);  // before the record of its call
  add_work(Activities::kMemset, 99, now, now + 1);                        // of another library
  add_call(99, kernel, 3);                                                // which has numbers, too
  add_call(13, graph);
  add_work(Activities::kPeerCopy, 13, now + 50'000'000, now + 60'000'000);
  add_work(Activities::kMemset, 13, now + 40'000'000, now + 45'000'000);
  add_work(Activities::kMemset, 13, 0, 0);  // CUPTI could not measure it
  all.update();
  add_call(12, kernel);
  all.update();
  CHECK(is_near(times_of(*log, 1, 10).begin, now) && is_near(times_of(*log, 1, 10).end, now + 10'000'000));
  CHECK(is_near(times_of(*log, 2, 10).begin, now + 20'000'000) && is_near(times_of(*log, 2, 10).end, now + 30'000'000));
  CHECK(is_near(times_of(*other, 1, 10).begin, now + 40'000'000) &&
        is_near(times_of(*other, 1, 10).end, now + 60'000'000));
  all.stop();
  CHECK(enabled.empty());
}

TEST(number_of_a_call_that_is_used_again_does_not_mix_times) {
  Activities& all = activities();
  all.start();
  const auto log = all.make_log();
  log->keep(10);
  const uint64_t first = queue(log, 1), second = queue(log, 2);
  const int64_t now = host_time();
  add_call(7, first);
  add_work(Activities::kMemcpy, 7, now, now + 10'000'000);
  add_call(7, second);
  add_work(Activities::kMemcpy, 7, now + 50'000'000, now + 60'000'000);
  all.update();
  CHECK(is_near(times_of(*log, 1, 10).end, now + 10'000'000) && is_near(times_of(*log, 2, 10).begin, now + 50'000'000));
  all.stop();
}

TEST(log_keeps_its_last_work) {
  WorkLog log(1);
  log.keep(2);
  for (int64_t number = 5; number < 9; ++number) {
    log.add(number);
    log.widen(number, number, number + 1);
  }
  for (const int64_t number : {0, 4, 5, 6, 9}) CHECK(times_of(log, number, 2).end == 0);
  CHECK(times_of(log, 7, 2).begin == 7 && times_of(log, 8, 2).end == 9);
  CHECK(times_of(log, 7, 1).end == 0 && times_of(log, 8, 1).begin == 8);
  log.keep(1);  // of a second user
  log.add(9);
  CHECK(times_of(log, 8, 2).end == 9);
}

TEST(clocks_are_compared_before_the_first_records_arrive) {
  Activities& all = activities();
  ahead += 3'600'000'000'000;  // an offset from before would be an hour wrong
  all.start();
  const auto log = all.make_log();
  log->keep(1);
  const int64_t now = host_time();
  add_call(1, queue(log, 1));
  add_work(Activities::kMemcpy, 1, now, now + 10'000'000);
  deliver();
  CHECK(is_near(times_of(*log, 1, 1).begin, now) && is_near(times_of(*log, 1, 1).end, now + 10'000'000));
  all.stop();
}

TEST(records_are_received_once_for_all_pieces_and_only_for_those_that_may_have_ended) {
  Activities& all = activities();
  all.start();
  const auto log = all.make_log();
  log->keep(3);
  std::vector<uint64_t> calls;
  for (int64_t number = 1; number <= 5; ++number) calls.push_back(queue(log, number));
  const auto records_of = [&](uint32_t number) {
    add_call(number, calls[number - 1]);
    add_work(Activities::kMemcpy, number, host_time(), host_time() + 1);
  };
  flushes = 0;
  CHECK(log->times({1, 2, 9}, 3, true)[0].end == 0 && flushes == 0);  // not kept: no longer, or not yet
  CHECK(log->times({3, 4, 5}, 3)[1].end == 0 && flushes == 0);
  records_of(3);
  records_of(4);
  const auto found = log->times({1, 3, 4, 5}, 3, true);
  CHECK(flushes == 1 && !found[0].end && found[1].end && found[2].end && !found[3].end);
  CHECK(log->times({3, 4}, 3, true)[0].end == found[1].end && flushes == 1);
  CHECK(log->times({3, 4, 5}, 1, true)[0].end == 0 && flushes == 2);
  records_of(5);
  CHECK(log->times({3, 4, 5}, 3, true)[2].end && flushes == 3);
  all.stop();
}

TEST(records_of_a_deleted_log_are_ignored) {
  Activities& all = activities();
  all.start();
  auto log = all.make_log();
  log->keep(1);
  add_call(1, queue(log, 1));
  add_work(Activities::kMemcpy, 1, 1, 2);
  log = nullptr;
  all.update();
  all.make_log();
  all.stop();
}

TEST(failing_start_leaves_nothing_enabled) {
  Activities& all = activities();
  failure = 39;
  CHECK(all.start() == 39 && enabled.empty());
  failure = 0;
  CHECK(all.start() == 0 && all.start() == 0);
  all.stop();
  CHECK(!enabled.empty());
  all.stop();
  CHECK(enabled.empty());
}

TEST(host_function_has_a_begin_while_it_runs) {
  const auto log = std::make_shared<WorkLog>(1);
  log->keep(1);
  log->add(1);
  Span during;
  struct Argument {
    WorkLog* log;
    Span* during;
  } argument{log.get(), &during};
  const auto look = [](void* given) {
    const auto* const found = static_cast<Argument*>(given);
    *found->during = times_of(*found->log, 1, 1);
  };
  TimedCall::run(new TimedCall{look, &argument, log, 1});
  CHECK(during.begin > 0 && during.end == 0);
  CHECK(times_of(*log, 1, 1).begin == during.begin && times_of(*log, 1, 1).end >= during.begin);
}

TEST(threads_log_together) {
  Activities& all = activities();
  all.start();
  const auto log = all.make_log();
  log->keep(1000);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&log, thread] {
      for (int64_t number = 1; number < 500; ++number) {
        log->add(number * 4 + thread);
        log->widen(number * 4 + thread, number, number + 1);
        times_of(*log, number, 1000);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(times_of(*log, 1999, 1000).end == 500);
  all.stop();
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
