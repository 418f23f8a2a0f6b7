// Graphs: creation, edges, copies and queries.
#include "graphs.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace softcuda {

Node::Node(Graph* graph, const CUgraphNodeParams& params, Stream::Work work, std::vector<Node*> before)
    : graph(graph), params(params), work(std::move(work)), before(std::move(before)) {
  machine().nodes.insert(this);
}

Node::~Node() { machine().nodes.erase(this); }

Graph::Graph() { machine().graphs.insert(this); }

Graph::~Graph() {
  const Lock lock(machine().mutex);
  machine().graphs.erase(this);
  nodes.clear();
}

bool Graph::has(CUgraphNodeType type) const {
  for (const auto& node : nodes) {
    if (node->params.type == type) return true;
    for (const auto& child : node->graphs) {
      if (child->has(type)) return true;
    }
  }
  return false;
}

Graph* graph_of(CUgraph handle) {
  auto* const graph = reinterpret_cast<Graph*>(handle);
  return machine().graphs.count(graph) ? graph : nullptr;
}

Node* node_of(CUgraphNode handle) {
  auto* const node = reinterpret_cast<Node*>(handle);
  return machine().nodes.count(node) ? node : nullptr;
}

int64_t count_graphs() {
  const auto& graphs = machine().graphs;
  return std::count_if(graphs.begin(), graphs.end(),
                       [](const Graph* each) { return !each->owner && !each->executable; });
}

std::unique_ptr<Graph> copy_of(const Graph& graph, std::map<const Node*, Node*>* copies) {
  auto copy = std::make_unique<Graph>();
  copy->conditions = graph.conditions;
  copy->objects = graph.objects;
  std::map<const Node*, Node*> own;
  for (const auto& node : graph.nodes) {
    copy->nodes.push_back(std::make_unique<Node>(copy.get(), node->params, node->work, std::vector<Node*>()));
    Node* const made = own[node.get()] = copy->nodes.back().get();
    made->condition = node->condition;
    for (const auto& child : node->graphs) {
      made->graphs.push_back(copy_of(*child, copies));
      made->graphs.back()->owner = made;
      made->bodies.push_back(handle_of(made->graphs.back().get()));
    }
    if (!made->graphs.empty()) {
      if (made->condition)
        made->params.conditional.phGraph_out = made->bodies.data();
      else
        made->params.graph.graph = made->bodies[0];
    }
  }
  for (const auto& [node, made] : own) {
    for (Node* dependency : node->before) made->before.push_back(own.at(dependency));
  }
  if (copies) copies->insert(own.begin(), own.end());
  return copy;
}

std::vector<Node*> ordered(const Graph& graph) {
  std::vector<Node*> done;
  std::set<Node*> known;
  size_t before;
  do {
    before = done.size();
    for (const auto& node : graph.nodes) {
      const auto is_known = [&](Node* other) { return known.count(other) > 0; };
      if (is_known(node.get()) || !std::all_of(node->before.begin(), node->before.end(), is_known)) continue;
      done.push_back(node.get());
      known.insert(node.get());
    }
  } while (done.size() > before);
  return done;
}

}  // namespace softcuda

using namespace softcuda;

namespace {

#define GRAPH(name, handle)                   \
  const Lock lock_of_##name(machine().mutex); \
  Graph* const name = graph_of(handle);       \
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE
#define NODE(name, handle)                    \
  const Lock lock_of_##name(machine().mutex); \
  Node* const name = node_of(handle);         \
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE

// Writes a list as the driver does: the number of elements if there is no array, else as many as it can hold.
CUresult list(const std::vector<Node*>& nodes, CUgraphNode* array, CUgraphEdgeData* edges, size_t* count) {
  if (count == nullptr || (edges && array == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (array) {
    for (size_t at = 0; at < *count; ++at) {
      array[at] = at < nodes.size() ? handle_of(nodes[at]) : nullptr;
      if (edges && at < nodes.size()) edges[at] = {};
    }
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return CUDA_SUCCESS;
}

CUresult check_edges(const Graph* graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edges,
                     size_t count) {
  if (count && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0; at < count; ++at) {
    const Node *const source = node_of(from[at]), *const target = node_of(to[at]);
    if (source == nullptr || target == nullptr || source == target) return CUDA_ERROR_INVALID_VALUE;
    if (source->graph != graph || target->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    if (edges && (edges[at].type || edges[at].from_port || edges[at].to_port)) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

bool is_captured(const Graph* graph) {
  const auto& captures = machine().captures;
  return std::any_of(captures.begin(), captures.end(), [&](const auto& each) { return each->graph == graph; });
}

const char* name_of(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "WAIT_EVENT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "CONDITIONAL";
    default:
      return "OTHER";
  }
}

void print(const Graph& graph, std::FILE* file, int* next) {
  const int number = (*next)++;
  std::fprintf(file, "subgraph cluster_%d {\nlabel=\"graph_%d\";\n", number, number);
  for (const auto& node : graph.nodes) {
    std::fprintf(file, "\"%p\" [label=\"%s\"];\n", static_cast<void*>(node.get()), name_of(node->params.type));
    for (const Node* source : node->before) {
      std::fprintf(file, "\"%p\" -> \"%p\";\n", static_cast<const void*>(source), static_cast<void*>(node.get()));
    }
    for (const auto& child : node->graphs) print(*child, file, next);
  }
  std::fprintf(file, "}\n");
}

}  // namespace

extern "C" {

CUresult cuGraphCreate(CUgraph* result, unsigned flags) {
  CALL(cuGraphCreate);
  if (result == nullptr || flags) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  *result = handle_of(new Graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  CALL(cuGraphDestroy);
  GRAPH(graph, handle);
  if (graph->owner || is_captured(graph)) return CUDA_ERROR_INVALID_VALUE;
  delete graph;
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* result, CUgraph original) {
  CALL(cuGraphClone);
  GRAPH(graph, original);
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (graph->has(CU_GRAPH_NODE_TYPE_CONDITIONAL)) return CUDA_ERROR_NOT_SUPPORTED;
  *result = handle_of(copy_of(*graph, nullptr).release());
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  CALL(cuGraphGetNodes);
  GRAPH(graph, handle);
  std::vector<Node*> all;
  for (const auto& node : graph->nodes) all.push_back(node.get());
  return list(all, nodes, nullptr, count);
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  CALL(cuGraphGetRootNodes);
  GRAPH(graph, handle);
  std::vector<Node*> roots;
  for (const auto& node : graph->nodes) {
    if (node->before.empty()) roots.push_back(node.get());
  }
  return list(roots, nodes, nullptr, count);
}

CUresult cuGraphGetEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
  CALL(cuGraphGetEdges);
  GRAPH(graph, handle);
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> sources, targets;
  for (const auto& node : graph->nodes) {
    for (Node* source : node->before) {
      sources.push_back(source);
      targets.push_back(node.get());
    }
  }
  size_t same = *count;
  list(targets, to, nullptr, &same);
  return list(sources, from, edges, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* edges, size_t* count) {
  CALL(cuGraphNodeGetDependencies);
  NODE(node, handle);
  return list(node->before, nodes, edges, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* edges, size_t* count) {
  CALL(cuGraphNodeGetDependentNodes);
  NODE(node, handle);
  std::vector<Node*> after;
  for (const auto& each : node->graph->nodes) {
    if (std::count(each->before.begin(), each->before.end(), node)) after.push_back(each.get());
  }
  return list(after, nodes, edges, count);
}

CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                const CUgraphEdgeData* edges, size_t count) {
  CALL(cuGraphAddDependencies);
  GRAPH(graph, handle);
  if (const CUresult failed = check_edges(graph, from, to, edges, count)) return failed;
  for (size_t at = 0; at < count; ++at) {
    const auto& before = node_of(to[at])->before;
    if (std::count(before.begin(), before.end(), node_of(from[at]))) return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t at = 0; at < count; ++at) node_of(to[at])->before.push_back(node_of(from[at]));
  return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edges, size_t count) {
  CALL(cuGraphRemoveDependencies);
  GRAPH(graph, handle);
  if (const CUresult failed = check_edges(graph, from, to, edges, count)) return failed;
  for (size_t at = 0; at < count; ++at) {
    auto& before = node_of(to[at])->before;
    const auto found = std::find(before.begin(), before.end(), node_of(from[at]));
    if (found == before.end()) return CUDA_ERROR_INVALID_VALUE;
    before.erase(found);
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  CALL(cuGraphDestroyNode);
  NODE(node, handle);
  Graph* const graph = node->graph;
  if (is_captured(graph)) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& each : graph->nodes) {
    auto& before = each->before;
    before.erase(std::remove(before.begin(), before.end(), node), before.end());
  }
  const auto is_it = [&](const auto& each) { return each.get() == node; };
  graph->nodes.erase(std::find_if(graph->nodes.begin(), graph->nodes.end(), is_it));
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  CALL(cuGraphNodeGetType);
  NODE(node, handle);
  if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->params.type;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph* result) {
  CALL(cuGraphNodeGetContainingGraph);
  NODE(node, handle);
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *result = handle_of(node->graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* result, CUgraph handle, CUcontext, unsigned initial,
                                        unsigned flags) {
  CALL(cuGraphConditionalHandleCreate);
  GRAPH(graph, handle);
  if (result == nullptr || flags > CU_GRAPH_COND_ASSIGN_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  graph->conditions.push_back(std::make_shared<Condition>(Condition{initial, flags}));
  *result = reinterpret_cast<CUgraphConditionalHandle>(graph->conditions.back().get());
  return CUDA_SUCCESS;
}

void softcuda_set_conditional(CUgraphConditionalHandle handle, unsigned value) {
  reinterpret_cast<Condition*>(handle)->value = value;
}

CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned flags) {
  CALL(cuGraphDebugDotPrint);
  GRAPH(graph, handle);
  if (path == nullptr || flags >= 1U << 18) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  int next = 1;
  std::fprintf(file, "digraph dot {\n");
  print(*graph, file, &next);
  std::fprintf(file, "}\n");
  std::fclose(file);
  return CUDA_SUCCESS;
}
}
