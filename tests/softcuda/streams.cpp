// Streams, events, host functions.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "machine.hpp"

namespace softcuda {

namespace {

uint64_t next_stream_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Stream::Stream(Context* context, unsigned flags, int priority)
    : context(context), flags(flags), priority(priority), id(next_stream_id()) {}

uint64_t Stream::submit(Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work_.push_back(std::move(work));
  if (!started_) {
    started_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
  return ++submitted_;
}

bool Stream::reached(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ >= number;
}

void Stream::wait(uint64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
}

uint64_t Stream::submitted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return submitted_;
}

void Stream::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
}

void Stream::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return finishing_ || !work_.empty(); });
    if (work_.empty()) return;
    Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    if (const int64_t latency = machine().latency) usleep(static_cast<useconds_t>(latency));
    work();
    work = nullptr;  // before the work counts as done: it may own memory
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

std::shared_ptr<Stream> stream_of(CUstream handle, Context* context) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return context->legacy;
  if (handle == CU_STREAM_PER_THREAD) {
    thread_local std::map<Context*, std::shared_ptr<Stream>> own;
    std::shared_ptr<Stream>& stream = own[context];
    if (!stream) stream = std::make_shared<Stream>(context, CU_STREAM_DEFAULT, 0);
    return stream;
  }
  const Lock lock(machine().mutex);
  for (const auto& device : machine().devices) {
    for (const auto& stream : device.context.streams) {
      if (reinterpret_cast<CUstream>(stream.get()) == handle) return stream;
    }
  }
  return nullptr;
}

uint64_t submit(const std::shared_ptr<Stream>& stream, Stream::Work work) {
  const Lock lock(machine().mutex);
  Context* const context = stream->context;
  const auto follow = [&](const std::shared_ptr<Stream>& other) {
    const uint64_t number = other->submitted();
    if (!other->reached(number)) stream->submit([other, number] { other->wait(number); });
  };
  if (stream == context->legacy) {
    for (const auto& other : context->streams) {
      if (!(other->flags & CU_STREAM_NON_BLOCKING)) follow(other);
    }
  } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
    follow(context->legacy);
  }
  return stream->submit(std::move(work));
}

namespace {

std::atomic<const ActivityHooks*> hooks{nullptr};

using PendingWork = std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>>;  // the last work of each stream

PendingWork pending_work(const Context* context) {
  const Lock lock(machine().mutex);
  PendingWork pending{{context->legacy, context->legacy->submitted()}};
  for (const auto& stream : context->streams) pending.emplace_back(stream, stream->submitted());
  return pending;
}

void wait_for(const PendingWork& pending) {
  for (const auto& [stream, number] : pending) stream->wait(number);
}

}  // namespace

void softcuda_set_activity_hooks(const ActivityHooks* given) { hooks = given; }

uint32_t traced_call(CUgraphNodeType type) {
  static const std::map<CUgraphNodeType, uint32_t> functions = {{CU_GRAPH_NODE_TYPE_MEMCPY, 306},
                                                                {CU_GRAPH_NODE_TYPE_MEMSET, 216},
                                                                {CU_GRAPH_NODE_TYPE_KERNEL, 307},
                                                                {CU_GRAPH_NODE_TYPE_GRAPH, 514}};  // as CUPTI's
  const ActivityHooks* const active = hooks;
  const auto function = functions.find(type);
  return active && function != functions.end() ? active->called(function->second) : 0;
}

Stream::Work traced(CUgraphNodeType type, uint32_t call, Stream::Work work) {
  if (!call) return work;
  return [type, call, work = std::move(work)] {
    const int64_t begin = now();
    work();
    if (const ActivityHooks* const active = hooks) active->executed(type, call, begin, std::max(now(), begin + 1));
  };
}

Stream::Work host_work(CUhostFn function, void* argument) {
  return [function, argument] {
    if (machine().sticky != CUDA_SUCCESS) return;
    in_host_function = true;
    function(argument);
    in_host_function = false;
  };
}

void record_event(Event* event, const std::shared_ptr<Stream>& stream) {
  event->nanoseconds = std::make_shared<int64_t>(0);
  event->number = submit(stream, [time = event->nanoseconds] { *time = now(); });
  event->stream = stream;
}

void record_event(Event* event, Context* context) {
  const auto all = std::make_shared<Stream>(context, CU_STREAM_NON_BLOCKING, 0);  // no stream of the program
  all->submit([pending = pending_work(context)] { wait_for(pending); });
  record_event(event, all);
  event->capture = nullptr;
  all->finish();
}

void wait_for_event(const Event* event, const std::shared_ptr<Stream>& stream) {
  if (event->stream && event->stream != stream)
    submit(stream, [other = event->stream, number = event->number] { other->wait(number); });
}

void wait_for_all(Context* context) { wait_for(pending_work(context)); }

void drop_events(const Context* context) {
  auto& events = machine().events;
  for (auto event = events.begin(); event != events.end();) {
    if ((*event)->context != context) {
      ++event;
      continue;
    }
    delete *event;
    event = events.erase(event);
  }
}

}  // namespace softcuda

using namespace softcuda;

namespace {

Event* event_of(CUevent handle) {
  const Lock lock(machine().mutex);
  auto* event = reinterpret_cast<Event*>(handle);
  return machine().events.count(event) ? event : nullptr;
}

// Holds the lock until the end of the scope, so that no other thread destroys the event before.
#define EVENT(name, handle)                   \
  const Lock lock_of_##name(machine().mutex); \
  Event* const name = event_of(handle);       \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

CUresult create_stream(CUstream* result, unsigned flags, int priority) {
  CURRENT_CONTEXT(context);
  if (result == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  const auto stream = std::make_shared<Stream>(context, flags, std::min(0, std::max(priority, -5)));
  context->streams.insert(stream);
  *result = reinterpret_cast<CUstream>(stream.get());
  return CUDA_SUCCESS;
}

CUresult record_event(CUevent handle, CUstream on, unsigned flags) {
  CURRENT_CONTEXT(context);
  STREAM(stream, on);
  EVENT(event, handle);
  if (flags > CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  if (stream->context != event->context) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto captured = capture_record(stream, event, flags)) return *captured;
  record_event(event, stream);
  return CUDA_SUCCESS;
}

// An event that was last recorded in a capture has no state. Invalidates that capture.
CUresult check_not_captured(const Event* event) {
  if (!event->capture) return CUDA_SUCCESS;
  invalidate(event->capture);
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

extern "C" {

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CALL(cuCtxGetStreamPriorityRange);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* result, unsigned flags, int priority) {
  CALL(cuStreamCreateWithPriority);
  return create_stream(result, flags, priority);
}

CUresult cuStreamCreate(CUstream* result, unsigned flags) {
  CALL(cuStreamCreate);
  return create_stream(result, flags, 0);
}

CUresult cuStreamDestroy(CUstream handle) {
  CALL(cuStreamDestroy);
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  Context* const context = nullptr;
  STREAM(stream, handle);  // of any context; none needs to be current
  const Lock lock(machine().mutex);
  end_captures_of(stream);
  stream->context->streams.erase(stream);
  stream->finish();
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  CALL(cuStreamQuery);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (const CUresult failed = check_not_capturing(stream)) return failed;
  return stream->reached(stream->submitted()) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle) {
  CALL(cuStreamSynchronize);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (const CUresult failed = check_not_capturing(stream)) return failed;
  stream->wait(submit(stream, [] {}));
  return machine().sticky;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent waited, unsigned flags) {
  CALL(cuStreamWaitEvent);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  EVENT(event, waited);
  if (flags > CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  if (const auto captured = capture_wait(stream, event, flags)) return *captured;
  wait_for_event(event, stream);
  return CUDA_SUCCESS;
}

#define STREAM_PROPERTY(function, type, value)         \
  CUresult function(CUstream handle, type* property) { \
    CALL(function);                                    \
    CURRENT_CONTEXT(context);                          \
    STREAM(stream, handle);                            \
    *property = value;                                 \
    return CUDA_SUCCESS;                               \
  }

STREAM_PROPERTY(cuStreamGetPriority, int, stream->priority)
STREAM_PROPERTY(cuStreamGetFlags, unsigned, stream->flags)
STREAM_PROPERTY(cuStreamGetId, unsigned long long, stream->id)
STREAM_PROPERTY(cuStreamGetDevice, CUdevice, stream->context->device)
STREAM_PROPERTY(cuStreamGetCtx, CUcontext, reinterpret_cast<CUcontext>(stream->context))

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  CALL(cuLaunchHostFunc);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_HOST);
  params.host.fn = function;
  params.host.userData = argument;
  return submit_or_capture(stream, params, host_work(function, argument));
}

CUresult cuEventCreate(CUevent* result, unsigned flags) {
  CALL(cuEventCreate);
  CURRENT_CONTEXT(context);
  if (result == nullptr || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  auto* event = new Event{context, flags, nullptr};
  machine().events.insert(event);
  *result = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle) {
  CALL(cuEventDestroy);
  EVENT(event, handle);
  machine().events.erase(event);
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream on, unsigned flags) {
  CALL(cuEventRecordWithFlags);
  return record_event(handle, on, flags);
}

CUresult cuEventRecord(CUevent handle, CUstream on) {
  CALL(cuEventRecord);
  return record_event(handle, on, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuCtxRecordEvent(CUcontext recorded, CUevent handle) {
  CALL(cuCtxRecordEvent);
  EVENT(event, handle);
  Context* const context = event->context;
  if (reinterpret_cast<CUcontext>(context) != recorded || !context->references) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failed = check_context_not_capturing(context)) return failed;
  record_event(event, context);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
  CALL(cuEventQuery);
  EVENT(event, handle);
  if (const CUresult failed = check_not_captured(event)) return failed;
  return !event->stream || event->stream->reached(event->number) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  CALL(cuEventSynchronize);
  std::shared_ptr<Stream> stream;
  uint64_t number;
  {
    EVENT(event, handle);
    if (const CUresult failed = check_not_captured(event)) return failed;
    stream = event->stream;
    number = event->number;
  }
  if (stream) stream->wait(number);
  return machine().sticky;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent first, CUevent second) {
  CALL(cuEventElapsedTime);
  EVENT(start, first);
  EVENT(end, second);
  for (const Event* event : {start, end}) {
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (!event->stream || event->flags & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    if (!event->stream->reached(event->number)) return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = static_cast<float>(static_cast<double>(*end->nanoseconds - *start->nanoseconds) / 1e6);
  return CUDA_SUCCESS;
}
}
