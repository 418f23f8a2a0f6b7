#include "machine.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

namespace softcuda {

namespace {

Machine* make_machine() {
  auto* made = new Machine;  // never deleted: threads of streams may use it while the process ends
  const std::vector<Gpu> visible = visible_to_cuda();
  made->devices.resize(visible.size());
  made->attributes = initial_attributes();
  made->latency = static_cast<int64_t>(number_from("SOFTCUDA_LATENCY", 0));
  for (size_t index = 0; index < visible.size(); ++index) {
    made->devices[index].gpu = visible[index];
    made->devices[index].context.device = static_cast<int>(index);
  }
  return made;
}

bool take_fault(const char* name, CUresult* code) {
  Machine& state = machine();
  for (auto fault = state.faults.begin(); fault != state.faults.end(); ++fault) {
    if (!fault->name.empty() && fault->name != name) continue;
    if (fault->after--) continue;
    if (fault->interrupts) {
      state.faults.erase(fault);
      raise(SIGINT);
      return false;
    }
    *code = fault->code;
    if (fault->sticky) state.sticky = fault->code;
    state.faults.erase(fault);
    return true;
  }
  return false;
}

uint64_t& counter_of(const char* function) {
  const Lock lock(machine().mutex);
  return machine().calls[function];
}

bool works_on_lost_device(const std::string& function) {
  for (const char* prefix :
       {"cuDevice", "cuCtxGet", "cuCtxSet", "cuCtxPush", "cuCtxPop", "cuStreamDestroy", "cuEventDestroy"}) {
    if (function.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

}  // namespace

thread_local bool in_host_function = false;

Machine& machine() {
  static Machine* const made = make_machine();
  return *made;
}

Function::Function(const char* function, bool initialisation)
    : name(function),
      calls(counter_of(function)),
      needs_initialisation(initialisation),
      is_unsafe(is_unsafe_call(function)),
      works_when_lost(works_on_lost_device(function)) {}

CUresult begin_call(const Function& function) {
  Machine& state = machine();
  const Lock lock(state.mutex);
  ++function.calls;
  CUresult code;
  if (!state.faults.empty() && take_fault(function.name, &code)) return code;
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  if (!function.needs_initialisation) return CUDA_SUCCESS;
  if (state.process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;  // also in a child that was forked after cuInit
  if (function.is_unsafe) {
    if (const CUresult failed = check_unsafe_call()) return failed;
  }
  return function.works_when_lost ? CUDA_SUCCESS : state.sticky.load();
}

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace softcuda

// What a test controls, through ctypes.
extern "C" {

int64_t softcuda_live_modules();

void softcuda_fail(const char* name, uint64_t after, int code, int sticky) {
  const softcuda::Lock lock(softcuda::machine().mutex);
  softcuda::machine().faults.push_back({name, after, static_cast<CUresult>(code), sticky != 0, false});
}

// Sends SIGINT to the process during a call.
void softcuda_interrupt(const char* name, uint64_t after) {
  const softcuda::Lock lock(softcuda::machine().mutex);
  softcuda::machine().faults.push_back({name, after, CUDA_SUCCESS, false, true});
}

void softcuda_clear_faults() {
  const softcuda::Lock lock(softcuda::machine().mutex);
  softcuda::machine().faults.clear();
  softcuda::machine().sticky = CUDA_SUCCESS;
}

// Changes the memory of all devices.
void softcuda_set_memory(uint64_t bytes) {
  const softcuda::Lock lock(softcuda::machine().mutex);
  for (auto& device : softcuda::machine().devices) device.gpu.memory = bytes;
}

// Changes an attribute of all devices.
void softcuda_set_attribute(int attribute, int value) {
  const softcuda::Lock lock(softcuda::machine().mutex);
  softcuda::machine().attributes[attribute] = value;
}

void softcuda_set_latency(int64_t microseconds) { softcuda::machine().latency = microseconds; }

// The number of calls of a function; of all functions for "".
uint64_t softcuda_calls(const char* name) {
  const softcuda::Lock lock(softcuda::machine().mutex);
  if (*name) return softcuda::machine().calls[name];
  uint64_t total = 0;
  for (const auto& each : softcuda::machine().calls) total += each.second;
  return total;
}

// The number of live objects of a type: "streams", "events", "contexts", "reservations", "chunks", "graphs",
// "graph_execs", "modules", "user_objects", "captures", or the name of a kind of memory.
int64_t softcuda_live(const char* type) {
  softcuda::Machine& state = softcuda::machine();
  const softcuda::Lock lock(state.mutex);
  const std::string name = type;
  size_t count = 0;
  if (name == "events") return static_cast<int64_t>(state.events.size());
  if (name == "reservations") return static_cast<int64_t>(state.reservations.size());
  if (name == "modules") return softcuda_live_modules();
  if (name == "graph_execs") return static_cast<int64_t>(state.graph_execs.size());
  if (name == "user_objects") return static_cast<int64_t>(state.user_objects.size());
  if (name == "captures") return static_cast<int64_t>(state.captures.size());
  if (name == "graphs") return softcuda::count_graphs();
  if (name == "chunks") return static_cast<int64_t>(state.chunks.size());
  if (name == "streams") {
    for (const auto& device : state.devices) count += device.context.streams.size();
    return static_cast<int64_t>(count);
  }
  if (name == "contexts") {
    for (const auto& device : state.devices) count += device.context.references > 0;
    return static_cast<int64_t>(count);
  }
  const char* kinds[] = {"device", "pinned", "managed", "registered", "imported", "mapped"};
  for (size_t kind = 0; kind < std::size(kinds); ++kind) {
    if (name != kinds[kind]) continue;
    for (const auto& each : state.ranges) count += each.second.kind == static_cast<softcuda::Range::Kind>(kind);
    return static_cast<int64_t>(count);
  }
  return -1;
}

namespace {

size_t write_names(const std::set<std::string>& names, char* text, size_t capacity) {
  std::string all;
  for (const auto& name : names) all += name + "\n";
  std::strncpy(text, all.c_str(), capacity);
  return all.size();
}

}  // namespace

// Both write names of functions that programs called, one in a line, and return the length.
size_t softcuda_missing(char* text, size_t capacity) {
  const softcuda::Lock lock(softcuda::machine().mutex);
  return write_names(softcuda::machine().missing, text, capacity);
}
size_t softcuda_called(char* text, size_t capacity) {
  const softcuda::Lock lock(softcuda::machine().mutex);
  std::set<std::string> names;
  for (const auto& each : softcuda::machine().calls) names.insert(each.first);
  return write_names(names, text, capacity);
}
}
