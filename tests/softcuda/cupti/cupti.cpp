// Stand-in for NVIDIA's CUPTI: activity records of the software driver's copies, fills and kernels.
#include <cupti.h>
#include <time.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "../activity.hpp"
#include "cuda/work_log.hpp"

using namespace softcuda;

namespace {

// The positions that forebay reads are those of NVIDIA's structures.
using Positions = forebay::cuda::Activities;
#define CHECK_POSITIONS(type, correlation)                   \
  static_assert(offsetof(type, start) == Positions::kBegin); \
  static_assert(offsetof(type, end) == Positions::kEnd);     \
  static_assert(offsetof(type, correlationId) == Positions::correlation)
CHECK_POSITIONS(CUpti_ActivityKernel9, kKernelCorrelation);
CHECK_POSITIONS(CUpti_ActivityKernel13, kKernelCorrelation);
CHECK_POSITIONS(CUpti_ActivityMemcpy6, kCopyCorrelation);
CHECK_POSITIONS(CUpti_ActivityMemcpy7, kCopyCorrelation);
CHECK_POSITIONS(CUpti_ActivityMemset4, kCopyCorrelation);
CHECK_POSITIONS(CUpti_ActivityMemset5, kCopyCorrelation);
CHECK_POSITIONS(CUpti_ActivityMemcpyPtoP4, kPeerCopyCorrelation);
static_assert(offsetof(CUpti_ActivityExternalCorrelation, externalKind) == Positions::kExternalKind);
static_assert(offsetof(CUpti_ActivityExternalCorrelation, externalId) == Positions::kExternalNumber);
static_assert(offsetof(CUpti_ActivityExternalCorrelation, correlationId) == Positions::kExternalRecordCorrelation);
static_assert(CUPTI_ACTIVITY_KIND_MEMCPY == Positions::kMemcpy && CUPTI_ACTIVITY_KIND_MEMSET == Positions::kMemset);
static_assert(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL == Positions::kKernel);
static_assert(CUPTI_ACTIVITY_KIND_MEMCPY2 == Positions::kPeerCopy);
static_assert(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION == Positions::kExternalCorrelation);
static_assert(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2 == Positions::kExternal);
static_assert(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED == Positions::kForced);
static_assert(CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync == Positions::kDriverFunctions[0]);
static_assert(CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async == Positions::kDriverFunctions[1]);
static_assert(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel == Positions::kDriverFunctions[2]);
static_assert(CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch == Positions::kDriverFunctions[3]);

constexpr int64_t kClockOffset = 1'000'000'000'000'000;  // of CUPTI's clock

using Record = std::vector<uint8_t>;

struct State {
  std::mutex mutex;
  CUpti_BuffersCallbackRequestFunc requested = nullptr;
  CUpti_BuffersCallbackCompleteFunc completed = nullptr;
  std::set<int> kinds;
  std::set<uint32_t> functions;
  std::deque<Record> records;
  uint32_t calls = 0;
  int64_t flushes = 0;
};

State& state() {
  static auto* const made = new State;
  return *made;
}

std::map<int, std::vector<uint64_t>>& correlations() {  // of the calling thread
  thread_local std::map<int, std::vector<uint64_t>> stacks;
  return stacks;
}

template <typename Type>
void add(const Type& record) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&record);
  state().records.emplace_back(bytes, bytes + sizeof record);
}

uint32_t called(uint32_t function) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const uint32_t number = ++state().calls;
  if (!state().functions.count(function)) return number;
  for (const auto& [kind, stack] : correlations()) {
    if (stack.empty() || !state().kinds.count(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) continue;
    CUpti_ActivityExternalCorrelation record{};
    record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    record.externalKind = static_cast<CUpti_ExternalCorrelationKind>(kind);
    record.externalId = stack.back();
    record.correlationId = number;
    add(record);
  }
  CUpti_ActivityAPI record{};
  record.kind = CUPTI_ACTIVITY_KIND_DRIVER;
  record.cbid = function;
  record.correlationId = number;
  add(record);
  return number;
}

template <typename Type>
void add_work(CUpti_ActivityKind kind, uint32_t call, int64_t begin, int64_t end) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (!state().kinds.count(kind)) return;
  Type record{};
  record.kind = kind;
  record.correlationId = call;
  record.start = static_cast<uint64_t>(begin + kClockOffset);
  record.end = static_cast<uint64_t>(end + kClockOffset);
  add(record);
}

void executed(CUgraphNodeType type, uint32_t call, int64_t begin, int64_t end) {
  if (type == CU_GRAPH_NODE_TYPE_MEMCPY) add_work<CUpti_ActivityMemcpy7>(CUPTI_ACTIVITY_KIND_MEMCPY, call, begin, end);
  if (type == CU_GRAPH_NODE_TYPE_MEMSET) add_work<CUpti_ActivityMemset5>(CUPTI_ACTIVITY_KIND_MEMSET, call, begin, end);
  if (type == CU_GRAPH_NODE_TYPE_KERNEL)
    add_work<CUpti_ActivityKernel13>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, call, begin, end);
}

const ActivityHooks kHooks{called, executed};

// Copies records to one buffer of the client. The callbacks are called without the lock, as CUPTI does.
void deliver(std::deque<Record> records) {
  while (!records.empty()) {
    uint8_t* buffer = nullptr;
    size_t bytes = 0, most = 0, used = 0;
    state().requested(&buffer, &bytes, &most);
    for (size_t count = 0; !records.empty() && (!most || count < most); ++count) {
      const Record& record = records.front();
      if (used + record.size() > bytes) break;
      std::memcpy(buffer + used, record.data(), record.size());
      used += record.size();
      records.pop_front();
    }
    state().completed(nullptr, 0, buffer, bytes, used);
    if (!used) break;
  }
}

size_t size_of(const uint8_t* record) {
  switch (*reinterpret_cast<const CUpti_ActivityKind*>(record)) {
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy7);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset5);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel13);
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    default:
      return sizeof(CUpti_ActivityExternalCorrelation);
  }
}

}  // namespace

extern "C" {

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed) {
  if (!requested || !completed) return CUPTI_ERROR_INVALID_PARAMETER;
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().requested = requested;
  state().completed = completed;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  const char* const code = std::getenv("SOFTCUPTI_ERROR");
  if (code) return static_cast<CUptiResult>(std::atoi(code));
  softcuda_set_activity_hooks(&kHooks);
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().kinds.insert(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().kinds.erase(kind);
  if (state().kinds.empty()) softcuda_set_activity_hooks(nullptr);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId function, uint8_t enabled) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (enabled)
    state().functions.insert(function);
  else
    state().functions.erase(function);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  std::deque<Record> records;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (!state().completed) return CUPTI_ERROR_INVALID_OPERATION;
    ++state().flushes;
    records.swap(state().records);
  }
  deliver(std::move(records));
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t used, CUpti_Activity** record) {
  if (!buffer || !record) return CUPTI_ERROR_INVALID_PARAMETER;
  auto* const last = reinterpret_cast<uint8_t*>(*record);
  uint8_t* const next = last ? last + size_of(last) : buffer;
  if (next >= buffer + used) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
  correlations()[kind].push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* last) {
  std::vector<uint64_t>& stack = correlations()[kind];
  if (stack.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (last) *last = stack.back();
  stack.pop_back();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  *timestamp = static_cast<uint64_t>(int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec + kClockOffset);
  return CUPTI_SUCCESS;
}

// The number of activity kinds and functions of the driver that are enabled.
int64_t softcupti_enabled() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return static_cast<int64_t>(state().kinds.size() + state().functions.size());
}

// The number of flushes.
int64_t softcupti_flushes() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().flushes;
}
}
