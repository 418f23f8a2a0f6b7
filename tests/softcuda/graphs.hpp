// Graphs, their executable forms, and the capture of streams into graphs.
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "machine.hpp"

namespace softcuda {

// A variable that kernels set and conditional nodes read.
struct Condition {
  unsigned initial, flags;
  unsigned value = 0;
  bool used = false;  // by a conditional node
};

// A function that is called with a pointer after the last reference to it was released.
struct UserObject {
  void* pointer;
  CUhostFn destroy;
  unsigned references;
};

// References of one graph, or of a launch, to a user object.
class UserReference {
 public:
  explicit UserReference(UserObject* object) : object(object) { ++object->references; }
  UserReference(const UserReference&) = delete;
  UserReference& operator=(const UserReference&) = delete;
  ~UserReference();
  UserObject* const object;
};
using UserReferences = std::vector<std::shared_ptr<UserReference>>;
void release(UserObject* object, unsigned count);  // the machine must be locked

struct Node {
  struct Graph* graph;
  CUgraphNodeParams params;                    // with the type; pointers in them are owned by `work`
  Stream::Work work;                           // of copies, fills, host functions and kernels
  std::vector<Node*> before;                   // the nodes that it depends on
  std::vector<std::unique_ptr<Graph>> graphs;  // the child graph, or the bodies of a conditional node
  std::vector<CUgraph> bodies;                 // handles of the latter
  std::shared_ptr<Condition> condition;        // of a conditional node
  Node(Graph* graph, const CUgraphNodeParams& params, Stream::Work work, std::vector<Node*> before);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();
};

struct Graph {
  Node* owner = nullptr;    // of a child graph or body
  bool executable = false;  // the copy that an executable graph owns
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::shared_ptr<Condition>> conditions;
  UserReferences objects;
  Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();
  bool has(CUgraphNodeType type) const;  // also inside child graphs and bodies
};

struct GraphExec {
  std::unique_ptr<Graph> graph;         // a copy of the graph
  std::map<const Node*, Node*> copies;  // by node of the original graph
  cuuint64_t flags = 0;
  std::map<const Node*, bool> disabled;  // nodes of the copy that launches leave out
  std::shared_ptr<Stream> stream;        // of the last launch
  uint64_t number = 0;                   // of the last work of that launch
};

// The capture of one or more streams into a graph.
struct Capture {
  uint64_t id;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  std::shared_ptr<Stream> origin;
  Graph* graph;
  std::unique_ptr<Graph> owned;  // the graph, unless the program has created it
  std::vector<std::shared_ptr<Stream>> streams;
  bool invalid = false;
};

// All of these require that the machine is locked.
Graph* graph_of(CUgraph handle);  // null for a handle that is not valid
Node* node_of(CUgraphNode handle);
inline CUgraph handle_of(Graph* graph) { return reinterpret_cast<CUgraph>(graph); }
inline CUgraphNode handle_of(Node* node) { return reinterpret_cast<CUgraphNode>(node); }
std::unique_ptr<Graph> copy_of(const Graph& graph, std::map<const Node*, Node*>* copies);
// Returns an error if the parameters are not valid, else sets the work that they stand for.
CUresult work_of(const CUgraphNodeParams& params, Stream::Work* work);
// Returns the nodes in an order that their dependencies allow; fewer if there is a cycle.
std::vector<Node*> ordered(const Graph& graph);

}  // namespace softcuda
