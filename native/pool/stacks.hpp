// Call stacks as a tree: each frame is stored once under its caller's node, so that a number identifies a stack.
//
// Note [Stacks refer to code objects]
// A frame is a code object, as an opaque number, and an offset: file and line are found when a snapshot is made, as
// that takes longer than an allocation. The binding keeps each code object alive as long as the tree has it, and begins
// a new list before it drops the old one, as deleting a code object runs finalizers, which may allocate and add stacks.
// A node has a smaller number than its children, so that no stack is circular. Numbers are valid during one recording:
// live blocks keep theirs, and unused stacks are dropped when the tree is made anew. Rejected: texts in each entry, and
// a reference for each frame, which is taken and dropped a hundred times for an allocation.
// Test: tests/native/test_history_ring.py::test_live_blocks_keep_their_stacks_and_unused_stacks_are_dropped
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forebay {

constexpr size_t kMaxDepth = 256;  // frames kept per stack

struct StackFrame {
  uintptr_t code;  // opaque: the binding's code object
  int32_t offset;

  bool operator==(const StackFrame& other) const { return code == other.code && offset == other.offset; }
};

class StackTable {
 public:
  struct Node {
    StackFrame frame;
    uint32_t parent;
  };

  StackTable() : nodes_(1, Node{{0, 0}, 0}), slots_(kMinSlots, 0) {}

  // Returns the number of a stack given innermost frame first; the empty stack is 0.
  uint32_t intern(const StackFrame* frames, size_t count) {
    // Loops allocate under the same callers repeatedly: frames equal to the previous stack's need no lookup.
    size_t same = 0;
    while (same < count && same < last_.size() && frames[count - 1 - same] == last_[same]) ++same;
    last_.resize(same);
    path_.resize(same);
    uint32_t node = same == 0 ? 0 : path_.back();
    for (; same < count; ++same) {
      const StackFrame& frame = frames[count - 1 - same];
      node = child(node, frame);
      last_.push_back(frame);
      path_.push_back(node);
    }
    return node;
  }

  // Returns the number that a stack has in `compacted`, a table that replaces this one, adding the stack if necessary.
  uint32_t move_to(StackTable* compacted, uint32_t number) const {
    std::vector<StackFrame> frames;
    for (; number != 0; number = nodes_[number].parent) frames.push_back(nodes_[number].frame);
    compacted->generation_ = generation_ + 1;
    return compacted->intern(frames.data(), frames.size());
  }

  // Returns a handle of a stack. `number_of` returns 0 for it once the table was replaced.
  uint64_t handle(uint32_t number) const { return number == 0 ? 0 : uint64_t{generation_} << 32 | number; }
  uint32_t number_of(uint64_t handle) const { return handle >> 32 == generation_ ? static_cast<uint32_t>(handle) : 0; }

  size_t size() const { return nodes_.size(); }
  const Node& operator[](size_t index) const { return nodes_[index]; }
  std::vector<Node> nodes() const { return {nodes_.begin() + 1, nodes_.end()}; }  // without the empty stack

 private:
  static constexpr size_t kMinSlots = 1024;

  size_t home_slot(uint32_t parent, const StackFrame& frame) const {
    uint64_t h = (frame.code >> 4) * 0x9e3779b97f4a7c15u ^ (static_cast<uint64_t>(parent) << 32 ^ frame.offset);
    h *= 0xbf58476d1ce4e5b9u;
    return (h >> 24) & (slots_.size() - 1);
  }

  uint32_t child(uint32_t parent, const StackFrame& frame) {
    size_t at = home_slot(parent, frame);
    for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
      const Node& node = nodes_[slots_[at]];
      if (node.parent == parent && node.frame == frame) return slots_[at];
    }
    const uint32_t added = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(Node{frame, parent});
    slots_[at] = added;
    if (nodes_.size() * 2 > slots_.size()) grow();
    return added;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, 0);
    for (uint32_t i = 1; i < nodes_.size(); ++i) {
      size_t at = home_slot(nodes_[i].parent, nodes_[i].frame);
      while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = i;
    }
  }

  std::vector<Node> nodes_;
  std::vector<uint32_t> slots_;
  std::vector<StackFrame> last_;  // the most recently interned stack, outermost first
  std::vector<uint32_t> path_;    // and its nodes
  uint32_t generation_ = 0;
};

}  // namespace forebay
