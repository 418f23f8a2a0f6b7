// Capture of streams into graphs, and the rules for programs during a capture.
#include <algorithm>
#include <cstring>

#include "graphs.hpp"

namespace softcuda {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::shared_ptr<Capture> capture_of(const std::shared_ptr<Stream>& stream) { return stream->capture; }

// Ends the capture of its streams. The graph is destroyed unless the program owns it.
void end(const std::shared_ptr<Capture>& capture) {
  for (const auto& stream : capture->streams) {
    stream->capture = nullptr;
    stream->front.clear();
  }
  capture->streams.clear();
  capture->origin = nullptr;
  auto& captures = machine().captures;
  captures.erase(std::remove(captures.begin(), captures.end(), capture), captures.end());
}

bool is_active(const std::shared_ptr<Capture>& capture) {
  const auto& captures = machine().captures;
  return std::find(captures.begin(), captures.end(), capture) != captures.end();
}

// Invalidates the captures of blocking streams of a context, and returns true if there are any.
bool has_blocking_capture(const Context* context, bool invalidate) {
  bool found = false;
  for (const auto& capture : machine().captures) {
    for (const auto& stream : capture->streams) {
      if (stream->context != context || stream->flags & CU_STREAM_NON_BLOCKING) continue;
      found = true;
      if (invalidate) capture->invalid = true;
    }
  }
  return found;
}

void add_to_front(const std::shared_ptr<Stream>& stream, const std::vector<Node*>& nodes) {
  for (Node* node : nodes) {
    if (std::find(stream->front.begin(), stream->front.end(), node) == stream->front.end())
      stream->front.push_back(node);
  }
}

Node* add_node(const std::shared_ptr<Stream>& stream, const CUgraphNodeParams& params, Stream::Work work) {
  Graph* const graph = stream->capture->graph;
  graph->nodes.push_back(std::make_unique<Node>(graph, params, std::move(work), stream->front));
  stream->front = {graph->nodes.back().get()};
  return stream->front[0];
}

// All nodes that the nodes depend on, and themselves.
std::set<Node*> with_ancestors(std::vector<Node*> nodes) {
  std::set<Node*> found;
  while (!nodes.empty()) {
    Node* const node = nodes.back();
    nodes.pop_back();
    if (found.insert(node).second) nodes.insert(nodes.end(), node->before.begin(), node->before.end());
  }
  return found;
}

CUresult begin(CUstream handle, CUstreamCaptureMode mode, Graph* into, std::vector<Node*> front) {
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  if (stream == context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  static uint64_t last_id = 0;
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  if (into == nullptr) capture->owned = std::make_unique<Graph>();
  capture->graph = into ? into : capture->owned.get();
  capture->streams.push_back(stream);
  machine().captures.push_back(capture);
  stream->capture = capture;
  stream->front = std::move(front);
  return CUDA_SUCCESS;
}

}  // namespace

CUgraphNodeParams node_params(CUgraphNodeType type) {
  CUgraphNodeParams params;
  std::memset(&params, 0, sizeof params);
  params.type = type;
  return params;
}

CUresult submit_or_capture(const std::shared_ptr<Stream>& stream, const CUgraphNodeParams& params, Stream::Work work,
                           uint64_t* number) {
  const Lock lock(machine().mutex);
  if (const auto capture = capture_of(stream)) {
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    add_node(stream, params, std::move(work));
    return CUDA_SUCCESS;
  }
  if (stream == stream->context->legacy && has_blocking_capture(stream->context, true))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const uint64_t submitted = submit(stream, traced(params.type, traced_call(params.type), std::move(work)));
  if (number) *number = submitted;
  return CUDA_SUCCESS;
}

CUresult check_not_capturing(const std::shared_ptr<Stream>& stream) {
  const Lock lock(machine().mutex);
  if (const auto capture = capture_of(stream)) {
    const bool was_invalid = capture->invalid;
    capture->invalid = true;
    return was_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const bool implicit = stream == stream->context->legacy && has_blocking_capture(stream->context, true);
  return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult check_context_not_capturing(const Context* context) {
  const Lock lock(machine().mutex);
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : machine().captures) {
    for (const auto& stream : capture->streams) {
      if (stream->context != context) continue;
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

bool is_unsafe_call(const std::string& call) {
  static const std::set<std::string> calls = {"cuMemAlloc",         "cuMemFree",           "cuMemAllocManaged",
                                              "cuMemAllocHost",     "cuMemHostAlloc",      "cuMemFreeHost",
                                              "cuMemHostRegister",  "cuMemHostUnregister", "cuMemAddressReserve",
                                              "cuMemAddressFree",   "cuMemCreate",         "cuMemRelease",
                                              "cuMemMap",           "cuMemUnmap",          "cuMemSetAccess",
                                              "cuMemcpy",           "cuMemcpyHtoD",        "cuMemcpyDtoH",
                                              "cuMemcpyDtoD",       "cuStreamSynchronize", "cuStreamQuery",
                                              "cuEventSynchronize", "cuEventQuery",        "cuCtxSynchronize",
                                              "cuModuleLoadData",   "cuModuleLoadDataEx",  "cuModuleUnload",
                                              "cuLibraryLoadData",  "cuLibraryUnload",     "cuIpcGetMemHandle",
                                              "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuCtxRecordEvent"};
  return calls.count(call) > 0;
}

CUresult check_unsafe_call() {
  if (machine().captures.empty() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : machine().captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (own ? capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED
            : thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL || capture->mode != CU_STREAM_CAPTURE_MODE_GLOBAL) {
      continue;
    }
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

std::optional<CUresult> capture_record(const std::shared_ptr<Stream>& stream, Event* event, unsigned flags) {
  const auto capture = capture_of(stream);
  if (!capture) {
    if (flags & CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy && has_blocking_capture(stream->context, true))
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    event->capture = nullptr;
    return std::nullopt;
  }
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_RECORD_EXTERNAL) {
    CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    params.eventRecord.event = reinterpret_cast<CUevent>(event);
    add_node(stream, params, nullptr);
    return CUDA_SUCCESS;
  }
  event->capture = capture;
  event->front = stream->front;
  return CUDA_SUCCESS;
}

std::optional<CUresult> capture_wait(const std::shared_ptr<Stream>& stream, Event* event, unsigned flags) {
  const auto capture = capture_of(stream);
  if (!capture && flags & CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  if (capture && capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_WAIT_EXTERNAL) {
    CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    params.eventWait.event = reinterpret_cast<CUevent>(event);
    add_node(stream, params, nullptr);
    return CUDA_SUCCESS;
  }
  if (!capture && !event->capture) {
    if (stream == stream->context->legacy && has_blocking_capture(stream->context, true))
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return std::nullopt;
  }
  if (!event->capture) {
    if (!event->stream) return CUDA_SUCCESS;  // it was never recorded
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  const auto other = event->capture;
  if (!is_active(other)) {
    if (capture) capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (other->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!capture) {
    if (stream == stream->context->legacy) {
      other->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture = other;
    other->streams.push_back(stream);
  } else if (other != capture) {
    capture->invalid = other->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  add_to_front(stream, event->front);
  return CUDA_SUCCESS;
}

bool is_captured(const std::shared_ptr<Stream>& stream) {
  const Lock lock(machine().mutex);
  return capture_of(stream) != nullptr;
}

void invalidate(const std::shared_ptr<Capture>& capture) { capture->invalid = true; }

void end_captures_of(const std::shared_ptr<Stream>& stream) {
  const auto capture = capture_of(stream);
  if (!capture || capture->origin != stream)
    return;  // a stream that has joined stays a member: its work must be joined
  capture->invalid = true;
  end(capture);
  capture->owned = nullptr;
}

}  // namespace softcuda

using namespace softcuda;

extern "C" {

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  CALL(cuStreamBeginCapture);
  return begin(handle, mode, nullptr, {});
}

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph into, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData*, size_t count, CUstreamCaptureMode mode) {
  CALL(cuStreamBeginCaptureToGraph);
  const Lock lock(machine().mutex);
  Graph* const graph = graph_of(into);
  if (graph == nullptr || (count && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> front;
  for (size_t at = 0; at < count; ++at) {
    Node* const node = node_of(dependencies[at]);
    if (node == nullptr || node->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    front.push_back(node);
  }
  return begin(handle, mode, graph, std::move(front));
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* result) {
  CALL(cuStreamEndCapture);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  *result = nullptr;
  const auto capture = capture_of(stream);
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const auto done = with_ancestors(stream->front);
  bool joined = true;
  for (const auto& each : capture->streams) {
    for (Node* node : each->front) joined = joined && done.count(node);
  }
  end(capture);
  if (capture->invalid || !joined) {
    capture->owned = nullptr;
    return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  capture->owned.release();  // NOLINT(bugprone-unused-return-value): the program owns it now
  *result = handle_of(capture->graph);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  CALL(cuStreamIsCapturing);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  if (stream == context->legacy && has_blocking_capture(context, false)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const auto capture = capture_of(stream);
  *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  CALL(cuStreamGetCaptureInfo);
  if (status == nullptr || (edges && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult failed = cuStreamIsCapturing(handle, status)) return failed;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  const Lock lock(machine().mutex);
  const auto stream = stream_of(handle, current_context());
  if (id) *id = stream->capture->id;
  if (graph) *graph = handle_of(stream->capture->graph);
  if (dependencies) *dependencies = reinterpret_cast<const CUgraphNode*>(stream->front.data());
  if (edges) {
    static const std::vector<CUgraphEdgeData> zeros(4096);
    if (stream->front.size() > zeros.size()) return CUDA_ERROR_NOT_SUPPORTED;
    *edges = zeros.data();
  }
  if (count) *count = stream->front.size();
  return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode* dependencies, const CUgraphEdgeData*,
                                           size_t count, unsigned flags) {
  CALL(cuStreamUpdateCaptureDependencies);
  CURRENT_CONTEXT(context);
  STREAM(stream, handle);
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  const auto capture = capture_of(stream);
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<Node*> nodes;
  for (size_t at = 0; at < count; ++at) {
    nodes.push_back(node_of(dependencies[at]));
    if (nodes.back() == nullptr || nodes.back()->graph != capture->graph) return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->front.clear();
  add_to_front(stream, nodes);
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  CALL(cuThreadExchangeStreamCaptureMode);
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}
}
