// The machine of the software driver: devices, contexts, streams and memory, all of them made of host memory and
// threads.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "activity.hpp"
#include "hardware.hpp"

namespace softcuda {

constexpr size_t kPage = size_t{2} << 20;  // granularity of device memory

// In-order work on a thread, which starts with the first work and ends when the stream is destroyed and idle.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using Work = std::function<void()>;

  Stream(struct Context* context, unsigned flags, int priority);
  uint64_t submit(Work work);  // returns the number of the work, which counts from 1
  bool reached(uint64_t number);
  void wait(uint64_t number);
  uint64_t submitted();
  void finish();  // accept no more work; the thread ends when it is idle

  struct Context* const context;
  const unsigned flags;
  const int priority;
  const uint64_t id;
  std::shared_ptr<struct Capture> capture;  // null unless the stream is captured; the machine's mutex protects it
  std::vector<struct Node*> front;          // the nodes on which the next captured operation depends

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  uint64_t submitted_ = 0, done_ = 0;
  bool started_ = false, finishing_ = false;
};

// The primary context of a device. It is never deleted, as threads may have it as their current one.
struct Context {
  int device;
  unsigned references = 0, flags = 0;  // of the primary context
  uint64_t id = 0;
  std::shared_ptr<Stream> legacy;             // the default stream
  std::set<std::shared_ptr<Stream>> streams;  // all others
  std::set<int> peers;                        // devices whose memory this context may use
};

struct Event {
  Context* context;
  unsigned flags;
  std::shared_ptr<Stream> stream;  // null before the first record
  uint64_t number = 0;             // of the work of the stream that records the time
  std::shared_ptr<int64_t> nanoseconds = std::make_shared<int64_t>(0);
  std::shared_ptr<Capture> capture{};  // in which it was last recorded, if it was
  std::vector<Node*> front{};          // the nodes before it
};

// A range of memory that the driver knows.
struct Range {
  enum Kind { Device, Pinned, Managed, Registered, Imported, Mapped } kind;
  size_t bytes;
  int device;
  int file = -1;                  // the shared memory, of device memory that other processes can open
  bool accessible = true;         // of mapped memory: cuMemSetAccess was called
  struct Chunk* chunk = nullptr;  // of mapped memory
  bool exported = false;          // other processes may have opened it
  uint64_t number = 0;            // of imported memory: identifies it in the system
  unsigned references = 1;        // of imported memory
};

// Physical memory of cuMemCreate.
struct Chunk {
  int device, file;
  size_t bytes;
  unsigned references = 1;  // the handle, and one for each mapping
  bool released = false;    // the handle is not valid any more
};

struct Device {
  Gpu gpu;
  size_t used = 0;
  Context context;
};

// An injected failure: the call `name` ("" for any) fails after `after` further calls.
struct Fault {
  std::string name;
  uint64_t after;
  CUresult code;
  bool sticky;      // all later calls fail, too
  bool interrupts;  // the call does not fail; the process gets SIGINT during it
};

struct Machine {
  std::recursive_mutex mutex;  // of everything below but `Stream`s; not held while waiting
  int process = 0;             // that called cuInit
  std::vector<Device> devices;
  std::map<int, int> attributes;             // of every device
  std::map<uintptr_t, Range> ranges;         // by address
  std::map<uintptr_t, size_t> reservations;  // of cuMemAddressReserve
  std::set<Event*> events;
  std::set<Chunk*> chunks;
  std::vector<std::shared_ptr<Capture>> captures;
  std::set<struct Graph*> graphs;  // also child graphs and bodies of conditional nodes
  std::set<Node*> nodes;
  std::set<struct GraphExec*> graph_execs;
  std::set<struct UserObject*> user_objects;
  std::vector<Fault> faults;
  std::atomic<CUresult> sticky{CUDA_SUCCESS};  // read by the threads of streams
  std::map<std::string, uint64_t> calls;
  std::set<std::string> missing;    // functions that do not exist here and were called
  std::atomic<int64_t> latency{0};  // microseconds that each piece of work takes at least; read as the former
};

Machine& machine();
std::map<int, int> initial_attributes();
extern thread_local bool in_host_function;  // which must not call the driver
using Lock = std::lock_guard<std::recursive_mutex>;

// A function of the driver. What depends on its name is found once: calls should cost as little as those of a driver.
struct Function {
  explicit Function(const char* name, bool needs_initialisation = true);

  const char* const name;
  uint64_t& calls;  // how often it was called
  const bool needs_initialisation, is_unsafe, works_when_lost;
};

// Counts a call, and returns the error with which it fails at its beginning.
CUresult begin_call(const Function& function);
#define CALL(name)                               \
  static const softcuda::Function called(#name); \
  if (const CUresult failed = softcuda::begin_call(called)) return failed

std::vector<Context*>& context_stack();  // of the calling thread
Context* current_context();              // null if there is none or it is not active
#define CURRENT_CONTEXT(name)                        \
  softcuda::Context* const name = current_context(); \
  if (name == nullptr) return CUDA_ERROR_INVALID_CONTEXT

// Returns the stream of a handle, or null.
std::shared_ptr<Stream> stream_of(CUstream handle, Context* context);
#define STREAM(name, handle)                                                           \
  const std::shared_ptr<softcuda::Stream> name = softcuda::stream_of(handle, context); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE
// Queues work, after what the default stream's rules demand.
uint64_t submit(const std::shared_ptr<Stream>& stream, Stream::Work work);
// Queues work, or adds it to the graph into which the stream is captured. The work must be repeatable, and own what its
// parameters point to. Sets `number` to that of the queued work; it stays 0 in a capture.
CUresult submit_or_capture(const std::shared_ptr<Stream>& stream, const CUgraphNodeParams& params, Stream::Work work,
                           uint64_t* number = nullptr);
CUgraphNodeParams node_params(CUgraphNodeType type);  // all other parameters are 0
// Returns work that reports when it ran, if activities are traced. A call of the driver has one number.
uint32_t traced_call(CUgraphNodeType type);
Stream::Work traced(CUgraphNodeType type, uint32_t call, Stream::Work work);
Stream::Work host_work(CUhostFn function, void* argument);
// Returns an error if a launch is not valid, else sets its work, which owns the arguments.
CUresult kernel_work(const CUDA_KERNEL_NODE_PARAMS_v3& params, Stream::Work* work);
void record_event(Event* event, const std::shared_ptr<Stream>& stream);
void record_event(Event* event, Context* context);  // behind all work of a context
void wait_for_event(const Event* event, const std::shared_ptr<Stream>& stream);
// Rules of captures. Each invalidates the captures that the operation concerns.
CUresult check_not_capturing(const std::shared_ptr<Stream>& stream);  // for queries and waits of the host
CUresult check_context_not_capturing(const Context* context);
bool is_unsafe_call(const std::string& name);  // such as cuMemAlloc, which captures cannot observe
CUresult check_unsafe_call();                  // for one of these
bool is_captured(const std::shared_ptr<Stream>& stream);
void invalidate(const std::shared_ptr<Capture>& capture);
// Capture the record of an event, or a wait for one; nothing if the stream is not captured and the event neither.
std::optional<CUresult> capture_record(const std::shared_ptr<Stream>& stream, Event* event, unsigned flags);
std::optional<CUresult> capture_wait(const std::shared_ptr<Stream>& stream, Event* event, unsigned flags);
int64_t count_graphs();                                       // that programs own
void end_captures_of(const std::shared_ptr<Stream>& stream);  // which is destroyed
void wait_for_all(Context* context);
void drop_events(const Context* context);  // the caller holds the lock

// Returns the range that contains an address, or null.
std::pair<const uintptr_t, Range>* range_at(uintptr_t address);
// Returns true if a device can access the range; without a context if any device can, as copies are staged through
// the host. False too if the driver has no such range.
bool is_accessible(uintptr_t address, size_t bytes, const Context* context);

// Maps memory of a kind and adds its range.
CUresult add_range(Range range, int protection, void** result);
// Removes a range that begins at an address; waits for all work first, as the driver does.
CUresult remove_range(uintptr_t address, Range::Kind kind, CUresult otherwise);
// Returns true if another process has opened the memory of a range and not closed it.
bool is_imported_elsewhere(const Range& range);

// Creates a file of device memory, or returns -1.
int new_file(const Device& device, size_t bytes);

// What the device function cudaGraphSetConditional does. The graph must exist.
extern "C" void softcuda_set_conditional(CUgraphConditionalHandle handle, unsigned value);

int64_t now();  // nanoseconds

}  // namespace softcuda
