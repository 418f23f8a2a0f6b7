// Streams of NVIDIA's driver, on functions that count events and complete work on a thread of their own.
#include <atomic>
#include <thread>

#include "check.hpp"
#include "cuda/stream.hpp"

using namespace forebay::cuda;

namespace {

struct Event {
  std::atomic<int64_t> position{0};  // of the last record, in the work of the stream
};

std::atomic<int64_t> submitted{0}, completed{0};
std::atomic<int> events{0}, pushed{0}, popped{0};
std::atomic<Result> failure{kSuccess};  // of the next records and queries
thread_local Handle current = nullptr;

Result get_current(Handle* context) {
  *context = current;
  return kSuccess;
}
Result push(Handle context) {
  current = context;
  ++pushed;
  return kSuccess;
}
Result pop(Handle* context) {
  *context = current;
  current = nullptr;
  ++popped;
  return kSuccess;
}
Result create(Handle* event, unsigned) {
  *event = new Event;
  ++events;
  return kSuccess;
}
Result destroy(Handle event) {
  delete static_cast<Event*>(event);
  --events;
  return kSuccess;
}
Result record(Handle event, Handle) {
  if (failure != kSuccess) return failure;
  static_cast<Event*>(event)->position = ++submitted;
  return kSuccess;
}
thread_local int mode = 0;
std::atomic<int> strict{0};  // queries in a mode that is not relaxed
Result exchange(int* other) {
  if (failure != kSuccess) return failure;
  std::swap(mode, *other);
  return kSuccess;
}
Result query(Handle event) {
  strict += mode != 2;
  if (failure != kSuccess) return failure;
  return static_cast<Event*>(event)->position <= completed ? kSuccess : kNotReady;
}
Result elapsed(float*, Handle, Handle) { return kSuccess; }
std::atomic<int> waits{0};
Result wait_event(Handle, Handle, unsigned) {
  ++waits;
  return kSuccess;
}
Result query_stream(Handle) {
  strict += mode != 2;
  return completed < submitted ? kNotReady : kSuccess;
}
Result copy(uint64_t, uint64_t, size_t, Handle) {
  ++submitted;
  return kSuccess;
}
Result set(uint64_t, unsigned char, size_t, Handle) {
  ++submitted;
  return kSuccess;
}
Result launch(Handle, Callback function, void* argument) {
  function(argument);
  return kSuccess;
}

std::vector<unsigned> launched;
Result launch_kernel(Handle, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared,
                     Handle, void** arguments, void** packed) {
  CHECK(!packed);
  launched = {x, y, z, a, b, c, shared, *static_cast<unsigned*>(arguments[0])};
  return failure;
}
// Addresses: 64 of device 3, 65 unknown, 66 failing, 67 pinned, 68 managed.
Result pointer_attribute(void* result, int attribute, uint64_t address) {
  if (address == 65) return kInvalidValue;
  if (address == 66) return kNotReady;
  constexpr unsigned kHost = 1, kDevice = 2;
  if (attribute == 2) *static_cast<unsigned*>(result) = address == 67 ? kHost : kDevice;
  if (attribute == 8) *static_cast<unsigned*>(result) = address == 68;
  if (attribute == 9) *static_cast<int*>(result) = 3;
  return kSuccess;
}

Result launch_graph(Handle graph, Handle) {
  CHECK(graph == &strict);
  return ++submitted, kSuccess;
}

const Functions driver{get_current, push,         pop,  create, destroy, record,   query,         elapsed,
                       wait_event,  query_stream, copy, set,    launch,  exchange, launch_kernel, pointer_attribute,
                       launch_graph};
int context, handle;

}  // namespace

TEST(ticks_are_reached_in_order) {
  Stream stream, other;
  stream.open(&driver, &context, &handle);
  other.open(&driver, &context, nullptr);
  completed = submitted.load();
  Tick first, second;
  CHECK(stream.signal(false, &first) == kSuccess && first.number == 1);
  CHECK(stream.signal(false, &second) == kSuccess && second.number == 2);
  int64_t tick;
  CHECK(stream.reached(&tick) == kSuccess && tick == 0);
  CHECK(stream.wait(1, 0, &tick) == kNotReady);
  CHECK(stream.make_wait(other, 1) == kSuccess && waits == 1);
  ++completed;
  CHECK(stream.reached(&tick) == kSuccess && tick == 1);
  CHECK(stream.make_wait(other, 1) == kSuccess && waits == 1);  // already reached
  ++completed;
  CHECK(stream.wait(2, 1'000'000'000, &tick) == kSuccess && tick == 2);
  CHECK(events == 2);
  CHECK(stream.signal(false, &first) == kSuccess);
  CHECK(events == 2);  // reused
  stream.close();
  CHECK(events == 0);
  CHECK(stream.reached(&tick) == kSuccess && tick == 3);
  CHECK(pushed == popped && current == nullptr);
}

TEST(failed_record_keeps_the_event_and_the_tick) {
  Stream stream;
  stream.open(&driver, &context, &handle);
  completed = submitted.load();
  failure = 700;
  Tick tick;
  CHECK(stream.signal(false, &tick) == 700 && stream.last() == 0);
  failure = kSuccess;
  CHECK(stream.signal(false, &tick) == kSuccess && tick.number == 1 && events == 1);
  failure = 700;
  int64_t last;
  CHECK(stream.wait(1, 1'000'000'000, &last) == 700);
  failure = kSuccess;
  stream.close();
  CHECK(events == 0);
}

TEST(event_of_a_mark_is_reused_after_both_ends) {
  Stream stream;
  stream.open(&driver, &context, &handle);
  completed = submitted.load();
  Tick first, second, third;
  CHECK(stream.signal(true, &first) == kSuccess);
  stream.give_back(first.event);  // still pending
  CHECK(stream.signal(true, &second) == kSuccess && second.event != first.event);
  completed = submitted.load();
  int64_t tick;
  CHECK(stream.reached(&tick) == kSuccess && tick == 2);
  CHECK(stream.signal(true, &third) == kSuccess && third.event == first.event);
  stream.give_back(third.event);
  stream.give_back(second.event);
  stream.close();
  stream.give_back(first.event);  // destroyed already
  CHECK(events == 0);
}

TEST(time_of_a_deleted_mark_does_not_depend_on_the_number_of_pending_ticks) {
  Stream stream, other;
  stream.open(&driver, &context, &handle);
  other.open(&driver, &context, nullptr);
  completed = submitted.load();
  constexpr int64_t kMany = 100'000;  // with a scan of all pending ticks, this takes minutes
  std::vector<Tick> marks(kMany);
  for (Tick& mark : marks) CHECK(stream.signal(true, &mark) == kSuccess);
  for (const Tick& mark : marks) stream.give_back(mark.event);
  Tick tick;
  CHECK(stream.signal(true, &tick) == kSuccess && events == kMany + 1);
  for (int64_t number = 1; number <= kMany; ++number) CHECK(stream.make_wait(other, number) == kSuccess);
  completed = submitted.load();
  int64_t last;
  CHECK(stream.reached(&last) == kSuccess && last == kMany + 1);
  CHECK(stream.signal(true, &tick) == kSuccess && events == kMany + 1);
  stream.close();
  CHECK(events == 0);
}

TEST(first_failure_of_native_calls_is_kept) {
  const auto failure = std::make_shared<std::atomic<int>>(0);
  const auto fail = [](void* code) { return static_cast<int>(reinterpret_cast<intptr_t>(code)); };
  for (intptr_t code : {0, 7, 8}) {
    run_native_call(new NativeCall{fail, reinterpret_cast<void*>(code), failure, false});
  }
  CHECK(*failure == 7);
}

TEST(queries_do_not_disturb_captures) {
  Stream stream;
  stream.open(&driver, &context, &handle);
  strict = 0;
  Tick tick;
  CHECK(stream.signal(true, &tick) == kSuccess);
  completed = submitted.load();
  CHECK(stream.query() == kSuccess && query_event(driver, tick.event) == kSuccess);
  int64_t last;
  CHECK(stream.reached(&last) == kSuccess && last == 1);
  CHECK(strict == 0 && mode == 0);
  failure = 700;
  CHECK(stream.query() == 700 && query_event(driver, tick.event) == 700);
  failure = kSuccess;
  stream.close();
}

TEST(call_of_a_graph_reports_to_the_stream_of_its_launch) {
  const auto first = std::make_shared<std::atomic<int>>(0), second = std::make_shared<std::atomic<int>>(0);
  NativeCall call{[](void*) { return 5; }, nullptr, first, true};
  report_to(&call, second);
  run_native_call(&call);
  CHECK(*first == 0 && *second == 5);
}

TEST(threads_signal_wait_and_mark_together) {
  Stream stream;
  stream.open(&driver, &context, &handle);
  completed = submitted.load();
  std::atomic<bool> ended{false};
  std::thread device([&] {
    while (!ended) completed = submitted.load();
  });
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&stream, number] {
      for (int round = 0; round < 500; ++round) {
        Tick tick;
        int64_t last;
        CHECK(stream.signal(number % 2, &tick) == kSuccess);
        CHECK(stream.wait(tick.number, 10'000'000'000, &last) == kSuccess && last >= tick.number);
        if (number % 2) stream.give_back(tick.event);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ended = true;
  device.join();
  CHECK(stream.last() == 2000);
  CHECK(events <= 8);
  stream.close();
  CHECK(events == 0);
}

TEST(kernel_is_launched_with_its_sizes_and_arguments) {
  Stream stream;
  stream.open(&driver, &context, &handle);
  unsigned argument = 9;
  void* arguments[] = {&argument};
  CHECK(stream.launch_kernel(&handle, {{1, 2, 3}, {4, 5, 6}, 7}, arguments) == kSuccess);
  CHECK((launched == std::vector<unsigned>{1, 2, 3, 4, 5, 6, 7, 9}));
  failure = 700;
  CHECK(stream.launch_kernel(&handle, {{1, 1, 1}, {1, 1, 1}, 0}, arguments) == 700);
  failure = kSuccess;
}

TEST(memory_belongs_to_one_device_or_all_or_none) {
  Stream stream;
  stream.open(&driver, &context, &handle);
  int device = 0;
  CHECK(stream.memory_device(64, &device) == kSuccess && device == 3);
  CHECK(stream.memory_device(65, &device) == kSuccess && device == kNoDevice);
  CHECK(stream.memory_device(66, &device) == kNotReady);
  CHECK(stream.memory_device(67, &device) == kSuccess && device == kAllDevices);
  CHECK(stream.memory_device(68, &device) == kSuccess && device == kAllDevices);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
