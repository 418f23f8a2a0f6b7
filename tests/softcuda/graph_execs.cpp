// Executable graphs: instantiation, update and launch.
#include <algorithm>

#include "graphs.hpp"

using namespace softcuda;

namespace {

#define EXEC(name, handle)                                 \
  const Lock lock_of_##name(machine().mutex);              \
  auto* const name = reinterpret_cast<GraphExec*>(handle); \
  if (!machine().graph_execs.count(name)) return CUDA_ERROR_INVALID_VALUE

constexpr cuuint64_t kFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                              CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

CUgraphInstantiateResult problem_of(const Graph& graph) {
  if (ordered(graph).size() < graph.nodes.size()) return CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  for (const auto& condition : graph.conditions) {
    if (!condition->used) return CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
  }
  for (const auto& node : graph.nodes) {
    for (const auto& child : node->graphs) {
      if (const auto found = problem_of(*child)) return found;
    }
  }
  return CUDA_GRAPH_INSTANTIATE_SUCCESS;
}

CUresult instantiate(CUgraphExec* result, CUgraph handle, cuuint64_t flags, CUgraphInstantiateResult* problem) {
  const Lock lock(machine().mutex);
  *problem = CUDA_GRAPH_INSTANTIATE_ERROR;
  const Graph* const graph = graph_of(handle);
  if (result == nullptr || graph == nullptr || flags & ~kFlags) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  for (const auto& capture : machine().captures) {
    if (capture->graph == graph) return CUDA_ERROR_INVALID_VALUE;
  }
  *problem = problem_of(*graph);
  if (*problem) return CUDA_ERROR_INVALID_VALUE;
  auto exec = std::make_unique<GraphExec>();
  exec->graph = copy_of(*graph, &exec->copies);
  exec->graph->executable = true;
  exec->flags = flags & ~static_cast<cuuint64_t>(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  *result = reinterpret_cast<CUgraphExec>(exec.get());
  machine().graph_execs.insert(exec.release());
  return CUDA_SUCCESS;
}

// One node of a launch, or the nodes of a body.
struct Step {
  Stream::Work work;
  CUgraphNodeParams params;
  std::shared_ptr<Condition> condition;
  std::vector<std::vector<Step>> bodies;
};

// The nodes in order, with those of child graphs in place.
void add_steps(const GraphExec& exec, const Graph& graph, std::vector<Step>* steps) {
  for (const Node* node : ordered(graph)) {
    const auto disabled = exec.disabled.find(node);
    if (disabled != exec.disabled.end() && disabled->second) continue;
    if (node->params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
      add_steps(exec, *node->graphs[0], steps);
      continue;
    }
    Step step{node->work, node->params, node->condition, {}};
    for (const auto& body : node->graphs) add_steps(exec, *body, &step.bodies.emplace_back());
    steps->push_back(std::move(step));
  }
}

void assign_defaults(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (step.condition && step.condition->flags & CU_GRAPH_COND_ASSIGN_DEFAULT)
      step.condition->value = step.condition->initial;
    for (const auto& body : step.bodies) assign_defaults(body);
  }
}

void execute(const Step& step) {
  if (step.work) step.work();
  if (!step.condition) return;
  const auto run = [&](size_t body) {
    for (const Step& each : step.bodies[body]) execute(each);
  };
  const unsigned& value = step.condition->value;
  switch (step.params.conditional.type) {
    case CU_GRAPH_COND_TYPE_IF:
      if (value)
        run(0);
      else if (step.bodies.size() > 1)
        run(1);
      break;
    case CU_GRAPH_COND_TYPE_WHILE:
      while (value) run(0);
      break;
    default:
      if (value < step.bodies.size()) run(value);
  }
}

// Finds where two graphs differ in more than the parameters of their nodes.
CUgraphExecUpdateResult difference(const Graph& graph, const Graph& other, Node** node) {
  if (graph.nodes.size() != other.nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  std::map<const Node*, size_t> places, others;
  for (size_t at = 0; at < graph.nodes.size(); ++at) {
    places[graph.nodes[at].get()] = at;
    others[other.nodes[at].get()] = at;
  }
  for (size_t at = 0; at < graph.nodes.size(); ++at) {
    const Node& own = *graph.nodes[at];
    *node = other.nodes[at].get();
    if (own.params.type != (*node)->params.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (own.before.size() != (*node)->before.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t edge = 0; edge < own.before.size(); ++edge) {
      if (places[own.before[edge]] != others[(*node)->before[edge]]) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    if (own.graphs.size() != (*node)->graphs.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    if (own.condition && own.params.conditional.type != (*node)->params.conditional.type)
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    for (size_t child = 0; child < own.graphs.size(); ++child) {
      Node* const outer = *node;
      if (const auto found = difference(*own.graphs[child], *outer->graphs[child], node)) return found;
      *node = outer;
    }
  }
  *node = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuGraphInstantiateWithFlags(CUgraphExec* result, CUgraph graph, unsigned long long flags) {
  CALL(cuGraphInstantiateWithFlags);
  CUgraphInstantiateResult problem;
  return instantiate(result, graph, flags, &problem);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* result, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  CALL(cuGraphInstantiateWithParams);
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  const CUresult failed = instantiate(result, graph, params->flags, &params->result_out);
  if (!failed && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
    return cuGraphUpload(*result, params->hUploadStream);
  return failed;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  CALL(cuGraphExecDestroy);
  EXEC(exec, handle);
  machine().graph_execs.erase(exec);
  delete exec;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  CALL(cuGraphExecGetFlags);
  EXEC(exec, handle);
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream on) {
  CALL(cuGraphUpload);
  CURRENT_CONTEXT(context);
  STREAM(stream, on);
  EXEC(exec, handle);
  if (const CUresult failed = check_not_capturing(stream)) return failed;
  submit(stream, [] {});
  return CUDA_SUCCESS;
}

// All nodes are executed on the launching stream.
CUresult cuGraphLaunch(CUgraphExec handle, CUstream on) {
  CALL(cuGraphLaunch);
  CURRENT_CONTEXT(context);
  STREAM(stream, on);
  EXEC(exec, handle);
  if (const CUresult failed = check_not_capturing(stream)) return failed;
  auto steps = std::make_shared<std::vector<Step>>();
  add_steps(*exec, *exec->graph, steps.get());
  for (const Step& step : *steps) {
    const CUevent event = step.params.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? step.params.eventRecord.event
                          : step.params.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ? step.params.eventWait.event
                                                                              : nullptr;
    if (event && !machine().events.count(reinterpret_cast<Event*>(event))) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (exec->stream && exec->stream != stream) {
    submit(stream, [other = exec->stream, number = exec->number] { other->wait(number); });
  }
  submit(stream, [steps] { assign_defaults(*steps); });
  const uint32_t call = traced_call(CU_GRAPH_NODE_TYPE_GRAPH);
  for (const Step& step : *steps) {
    if (step.params.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
      record_event(reinterpret_cast<Event*>(step.params.eventRecord.event), stream);
    } else if (step.params.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
      wait_for_event(reinterpret_cast<Event*>(step.params.eventWait.event), stream);
    } else {
      submit(stream, traced(step.params.type, call, [steps, &step] { execute(step); }));
    }
  }
  exec->stream = stream;
  exec->number = submit(stream, [objects = exec->graph->objects] {});
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned enabled) {
  CALL(cuGraphNodeSetEnabled);
  EXEC(exec, handle);
  const auto found = exec->copies.find(reinterpret_cast<const Node*>(node));
  if (found == exec->copies.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUgraphNodeType type = found->second->params.type;
  if (type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
  exec->disabled[found->second] = !enabled;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec handle, CUgraph changed, CUgraphExecUpdateResultInfo* info) {
  CALL(cuGraphExecUpdate);
  EXEC(exec, handle);
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
  info->errorNode = info->errorFromNode = nullptr;
  const Graph* const graph = graph_of(changed);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Node* node = nullptr;
  info->result = difference(*exec->graph, *graph, &node);
  if (info->result) {
    info->errorNode = handle_of(node);
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  std::map<const Node*, Node*> copies;
  auto copy = copy_of(*graph, &copies);
  std::map<const Node*, bool> disabled;
  for (size_t at = 0; at < copy->nodes.size(); ++at) {
    const auto found = exec->disabled.find(exec->graph->nodes[at].get());
    if (found != exec->disabled.end()) disabled[copy->nodes[at].get()] = found->second;
  }
  // The nodes of the graph that was instantiated stay valid names of the nodes.
  std::map<const Node*, size_t> places;
  for (size_t at = 0; at < exec->graph->nodes.size(); ++at) places[exec->graph->nodes[at].get()] = at;
  for (const auto& [original, old] : exec->copies) {
    const auto found = places.find(old);
    if (found != places.end()) copies[original] = copy->nodes[found->second].get();
  }
  copy->executable = true;
  exec->copies = std::move(copies);
  exec->disabled = std::move(disabled);
  exec->graph = std::move(copy);
  return CUDA_SUCCESS;
}
}
