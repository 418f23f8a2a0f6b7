// Nodes of graphs: their parameters, and the work that these stand for.
#include <algorithm>
#include <cstring>

#include "graphs.hpp"

namespace softcuda {

namespace {

uintptr_t start_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : static_cast<uintptr_t>(device);
}

// Returns true if a range may be read or written: memory of a device that the context can access, or of the host.
bool is_valid(CUmemorytype type, uintptr_t address, size_t bytes, const Context* context) {
  if (type == CU_MEMORYTYPE_ARRAY || address == 0) return false;
  const bool known = range_at(address) != nullptr;
  if (type == CU_MEMORYTYPE_DEVICE && !known) return false;
  return !known || is_accessible(address, bytes, context);
}

CUresult copy_work(const CUDA_MEMCPY_NODE_PARAMS& params, Stream::Work* work) {
  const CUDA_MEMCPY3D& copy = params.copyParams;
  const auto* const context = reinterpret_cast<const Context*>(params.copyCtx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (params.flags || params.reserved || copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const size_t source_pitch = copy.Height > 1 || copy.Depth > 1 ? copy.srcPitch : copy.WidthInBytes;
  const size_t target_pitch = copy.Height > 1 || copy.Depth > 1 ? copy.dstPitch : copy.WidthInBytes;
  if (source_pitch < copy.WidthInBytes || target_pitch < copy.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
  const size_t source_plane = source_pitch * (copy.srcHeight ? copy.srcHeight : copy.Height);
  const size_t target_plane = target_pitch * (copy.dstHeight ? copy.dstHeight : copy.Height);
  const auto source = start_of(copy.srcMemoryType, copy.srcHost, copy.srcDevice) + copy.srcXInBytes +
                      copy.srcY * source_pitch + copy.srcZ * source_plane;
  const auto target = start_of(copy.dstMemoryType, copy.dstHost, copy.dstDevice) + copy.dstXInBytes +
                      copy.dstY * target_pitch + copy.dstZ * target_plane;
  const auto extent = [&](size_t plane, size_t pitch) {
    return (copy.Depth - 1) * plane + (copy.Height - 1) * pitch + copy.WidthInBytes;
  };
  if (!is_valid(copy.srcMemoryType, source, extent(source_plane, source_pitch), context) ||
      !is_valid(copy.dstMemoryType, target, extent(target_plane, target_pitch), context)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *work = [=] {
    for (size_t plane = 0; plane < copy.Depth; ++plane) {
      for (size_t row = 0; row < copy.Height; ++row) {
        std::memmove(reinterpret_cast<void*>(target + plane * target_plane + row * target_pitch),
                     reinterpret_cast<const void*>(source + plane * source_plane + row * source_pitch),
                     copy.WidthInBytes);
      }
    }
  };
  return CUDA_SUCCESS;
}

CUresult fill_work(const CUDA_MEMSET_NODE_PARAMS_v2& fill, Stream::Work* work) {
  const auto* const context = reinterpret_cast<const Context*>(fill.ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const size_t size = fill.elementSize, row = fill.width * size;
  if ((size != 1 && size != 2 && size != 4) || fill.width == 0 || fill.height == 0 || fill.dst % size)
    return CUDA_ERROR_INVALID_VALUE;
  if (size < 4 && fill.value >> 8 * size) return CUDA_ERROR_INVALID_VALUE;
  const size_t pitch = fill.height > 1 ? fill.pitch : row;
  if (pitch < row || pitch % size) return CUDA_ERROR_INVALID_VALUE;
  if (!is_valid(CU_MEMORYTYPE_DEVICE, fill.dst, (fill.height - 1) * pitch + row, context))
    return CUDA_ERROR_INVALID_VALUE;
  *work = [fill, size, row, pitch] {
    for (size_t line = 0; line < fill.height; ++line) {
      auto* const start = reinterpret_cast<char*>(fill.dst + line * pitch);
      for (size_t at = 0; at < row; at += size) std::memcpy(start + at, &fill.value, size);
    }
  };
  return CUDA_SUCCESS;
}

}  // namespace

__attribute__((weak)) CUresult kernel_work(const CUDA_KERNEL_NODE_PARAMS_v3&, Stream::Work*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult work_of(const CUgraphNodeParams& params, Stream::Work* work) {
  const auto event_is_valid = [](CUevent handle) {
    return machine().events.count(reinterpret_cast<Event*>(handle)) > 0;
  };
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return copy_work(params.memcpy, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return fill_work(params.memset, work);
    case CU_GRAPH_NODE_TYPE_HOST:
      if (params.host.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
      *work = host_work(params.host.fn, params.host.userData);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return event_is_valid(params.eventRecord.event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return event_is_valid(params.eventWait.event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return kernel_work(params.kernel, work);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace softcuda

using namespace softcuda;

namespace {

// Returns true if a graph may be the body of a conditional node, or a part of one.
bool is_body(const Graph* graph) {
  for (; graph->owner; graph = graph->owner->graph) {
    if (graph->owner->condition) return true;
  }
  return false;
}

bool is_allowed_in_body(CUgraphNodeType type) {
  for (const CUgraphNodeType allowed :
       {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_EMPTY, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_MEMSET,
        CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_CONDITIONAL}) {
    if (type == allowed) return true;
  }
  return false;
}

std::shared_ptr<Condition> condition_of(CUgraphConditionalHandle handle, const Graph* graph) {
  for (; graph; graph = graph->owner ? graph->owner->graph : nullptr) {
    for (const auto& each : graph->conditions) {
      if (reinterpret_cast<CUgraphConditionalHandle>(each.get()) == handle) return each;
    }
  }
  return nullptr;
}

CUresult check_condition(const CUDA_CONDITIONAL_NODE_PARAMS& params, const Condition* condition) {
  if (condition == nullptr || condition->used || params.ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (params.type) {
    case CU_GRAPH_COND_TYPE_IF:
      return params.size == 1 || params.size == 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_COND_TYPE_WHILE:
      return params.size == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return params.size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult add(CUgraphNode* result, CUgraph handle, const CUgraphNode* dependencies, size_t count,
             CUgraphNodeParams* params) {
  const Lock lock(machine().mutex);
  Graph* const graph = graph_of(handle);
  if (result == nullptr || graph == nullptr || (count && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> before;
  for (size_t at = 0; at < count; ++at) {
    Node* const node = node_of(dependencies[at]);
    if (node == nullptr || node->graph != graph || std::count(before.begin(), before.end(), node))
      return CUDA_ERROR_INVALID_VALUE;
    before.push_back(node);
  }
  if (is_body(graph) && !is_allowed_in_body(params->type)) return CUDA_ERROR_NOT_SUPPORTED;
  Stream::Work work;
  std::unique_ptr<Graph> child;
  std::shared_ptr<Condition> condition;
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    Graph* const original = graph_of(params->graph.graph);
    if (original == nullptr || original->has(CU_GRAPH_NODE_TYPE_CONDITIONAL)) return CUDA_ERROR_INVALID_VALUE;
    if (params->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) return CUDA_ERROR_NOT_SUPPORTED;
    for (const auto& node : original->nodes) {
      if (is_body(graph) && !is_allowed_in_body(node->params.type)) return CUDA_ERROR_NOT_SUPPORTED;
    }
    child = copy_of(*original, nullptr);
  } else if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    condition = condition_of(params->conditional.handle, graph);
    if (const CUresult failed = check_condition(params->conditional, condition.get())) return failed;
  } else if (const CUresult failed = work_of(*params, &work)) {
    return failed;
  }
  graph->nodes.push_back(std::make_unique<Node>(graph, *params, std::move(work), std::move(before)));
  Node* const node = graph->nodes.back().get();
  if (child) node->graphs.push_back(std::move(child));
  if (condition) {
    condition->used = true;
    node->condition = condition;
    for (unsigned at = 0; at < params->conditional.size; ++at) node->graphs.push_back(std::make_unique<Graph>());
  }
  for (const auto& each : node->graphs) {
    each->owner = node;
    node->bodies.push_back(handle_of(each.get()));
  }
  if (condition) {
    params->conditional.phGraph_out = node->params.conditional.phGraph_out = node->bodies.data();
  } else if (!node->graphs.empty()) {
    node->params.graph.graph = node->bodies[0];
  }
  *result = handle_of(node);
  return CUDA_SUCCESS;
}

CUresult set(Node* node, const CUgraphNodeParams& params) {
  if (node == nullptr || node->params.type != params.type) return CUDA_ERROR_INVALID_VALUE;
  Stream::Work work;
  if (const CUresult failed = work_of(params, &work)) return failed;
  node->params = params;
  node->work = std::move(work);
  return CUDA_SUCCESS;
}

// Returns the node of an executable graph that was made from a node.
Node* node_of(CUgraphExec handle, CUgraphNode node) {
  auto* const exec = reinterpret_cast<GraphExec*>(handle);
  if (!machine().graph_execs.count(exec)) return nullptr;
  const auto found = exec->copies.find(reinterpret_cast<const Node*>(node));
  return found == exec->copies.end() ? nullptr : found->second;
}

CUgraphNodeParams copy_params(const CUDA_MEMCPY3D& copy, CUcontext context) {
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_MEMCPY);
  params.memcpy.copyParams = copy;
  params.memcpy.copyCtx = context;
  return params;
}

CUgraphNodeParams fill_params(const CUDA_MEMSET_NODE_PARAMS& fill, CUcontext context) {
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_MEMSET);
  std::memcpy(&params.memset, &fill, sizeof fill);
  params.memset.ctx = context;
  return params;
}

CUgraphNodeParams host_params(const CUDA_HOST_NODE_PARAMS& host) {
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_HOST);
  params.host.fn = host.fn;
  params.host.userData = host.userData;
  return params;
}

}  // namespace

extern "C" {

CUresult cuGraphAddNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies,
                        const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* params) {
  CALL(cuGraphAddNode);
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0; edges && at < count; ++at) {
    if (edges[at].type || edges[at].from_port || edges[at].to_port) return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (params->reserved0[0] || params->reserved0[1] || params->reserved0[2] || params->reserved2)
    return CUDA_ERROR_INVALID_VALUE;
  return add(result, graph, dependencies, count, params);
}

CUresult cuGraphAddEmptyNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  CALL(cuGraphAddEmptyNode);
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_EMPTY);
  return add(result, graph, dependencies, count, &params);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* copy, CUcontext context) {
  CALL(cuGraphAddMemcpyNode);
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams params = copy_params(*copy, context);
  return add(result, graph, dependencies, count, &params);
}

CUresult cuGraphAddMemsetNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
  CALL(cuGraphAddMemsetNode);
  if (fill == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams params = fill_params(*fill, context);
  return add(result, graph, dependencies, count, &params);
}

CUresult cuGraphAddHostNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* host) {
  CALL(cuGraphAddHostNode);
  if (host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams params = host_params(*host);
  return add(result, graph, dependencies, count, &params);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUgraph child) {
  CALL(cuGraphAddChildGraphNode);
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_GRAPH);
  params.graph.graph = child;
  return add(result, graph, dependencies, count, &params);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                   CUevent event) {
  CALL(cuGraphAddEventRecordNode);
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  params.eventRecord.event = event;
  return add(result, graph, dependencies, count, &params);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 CUevent event) {
  CALL(cuGraphAddEventWaitNode);
  CUgraphNodeParams params = node_params(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  params.eventWait.event = event;
  return add(result, graph, dependencies, count, &params);
}

CUresult cuGraphNodeGetParams(CUgraphNode handle, CUgraphNodeParams* params) {
  CALL(cuGraphNodeGetParams);
  const Lock lock(machine().mutex);
  const Node* const node = softcuda::node_of(handle);
  if (node == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *params = node->params;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams* params) {
  CALL(cuGraphNodeSetParams);
  const Lock lock(machine().mutex);
  return params ? set(softcuda::node_of(handle), *params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode handle, CUgraphNodeParams* params) {
  CALL(cuGraphExecNodeSetParams);
  const Lock lock(machine().mutex);
  return params ? set(node_of(exec, handle), *params) : CUDA_ERROR_INVALID_VALUE;
}

#define GET_PARAMS(function, enumerator, Result, value)                                                           \
  CUresult function(CUgraphNode handle, Result* result) {                                                         \
    CALL(function);                                                                                               \
    const Lock lock(machine().mutex);                                                                             \
    const Node* const node = softcuda::node_of(handle);                                                           \
    if (node == nullptr || result == nullptr || node->params.type != enumerator) return CUDA_ERROR_INVALID_VALUE; \
    value;                                                                                                        \
    return CUDA_SUCCESS;                                                                                          \
  }

GET_PARAMS(cuGraphMemcpyNodeGetParams, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D,
           *result = node->params.memcpy.copyParams)
GET_PARAMS(cuGraphMemsetNodeGetParams, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS,
           std::memcpy(result, &node->params.memset, sizeof *result))
GET_PARAMS(cuGraphHostNodeGetParams, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS,
           (*result = {node->params.host.fn, node->params.host.userData}))
GET_PARAMS(cuGraphChildGraphNodeGetGraph, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, *result = node->params.graph.graph)
GET_PARAMS(cuGraphEventRecordNodeGetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent,
           *result = node->params.eventRecord.event)
GET_PARAMS(cuGraphEventWaitNodeGetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, *result = node->params.eventWait.event)

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* copy) {
  CALL(cuGraphMemcpyNodeSetParams);
  const Lock lock(machine().mutex);
  Node* const node = softcuda::node_of(handle);
  if (node == nullptr || copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(node, copy_params(*copy, node->params.memcpy.copyCtx));
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* fill) {
  CALL(cuGraphMemsetNodeSetParams);
  const Lock lock(machine().mutex);
  Node* const node = softcuda::node_of(handle);
  if (node == nullptr || fill == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(node, fill_params(*fill, node->params.memset.ctx));
}

CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* host) {
  CALL(cuGraphHostNodeSetParams);
  const Lock lock(machine().mutex);
  return host ? set(softcuda::node_of(handle), host_params(*host)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode handle, const CUDA_MEMCPY3D* copy,
                                        CUcontext context) {
  CALL(cuGraphExecMemcpyNodeSetParams);
  const Lock lock(machine().mutex);
  return copy ? set(node_of(exec, handle), copy_params(*copy, context)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* fill,
                                        CUcontext context) {
  CALL(cuGraphExecMemsetNodeSetParams);
  const Lock lock(machine().mutex);
  return fill ? set(node_of(exec, handle), fill_params(*fill, context)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* host) {
  CALL(cuGraphExecHostNodeSetParams);
  const Lock lock(machine().mutex);
  return host ? set(node_of(exec, handle), host_params(*host)) : CUDA_ERROR_INVALID_VALUE;
}
}
