// Call stacks as a tree: each place is kept once under its caller's, so a stack is one number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forebay {

constexpr size_t kDeepest = 256;  // places of one stack that are kept

struct Place {
  uintptr_t code;  // whatever the face calls code; opaque here
  int32_t offset;

  bool operator==(const Place& other) const { return code == other.code && offset == other.offset; }
};

class Stacks {
 public:
  struct Node {
    Place place;
    uint32_t parent;
  };

  Stacks() : nodes_(1, Node{{0, 0}, 0}), slots_(kFewest, 0) {}

  // The number of a stack, innermost place first; 0 is the empty one.
  uint32_t intern(const Place* places, size_t count) {
    // Loops allocate under the same callers again and again: what equals the stack before needs no look-up.
    size_t same = 0;
    while (same < count && same < last_.size() && places[count - 1 - same] == last_[same]) ++same;
    last_.resize(same);
    path_.resize(same);
    uint32_t node = same == 0 ? 0 : path_.back();
    for (; same < count; ++same) {
      const Place& place = places[count - 1 - same];
      node = child(node, place);
      last_.push_back(place);
      path_.push_back(node);
    }
    return node;
  }

  size_t size() const { return nodes_.size(); }
  const Node& operator[](size_t index) const { return nodes_[index]; }
  std::vector<Node> nodes() const { return {nodes_.begin() + 1, nodes_.end()}; }  // from stack 1 on

 private:
  static constexpr size_t kFewest = 1024;

  size_t home(uint32_t parent, const Place& place) const {
    uint64_t h = (place.code >> 4) * 0x9e3779b97f4a7c15u ^ (static_cast<uint64_t>(parent) << 32 ^ place.offset);
    h *= 0xbf58476d1ce4e5b9u;
    return (h >> 24) & (slots_.size() - 1);
  }

  uint32_t child(uint32_t parent, const Place& place) {
    size_t at = home(parent, place);
    for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
      const Node& node = nodes_[slots_[at]];
      if (node.parent == parent && node.place == place) return slots_[at];
    }
    const uint32_t made = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(Node{place, parent});
    slots_[at] = made;
    if (nodes_.size() * 2 > slots_.size()) grow();
    return made;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, 0);
    for (uint32_t i = 1; i < nodes_.size(); ++i) {
      size_t at = home(nodes_[i].parent, nodes_[i].place);
      while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = i;
    }
  }

  std::vector<Node> nodes_;
  std::vector<uint32_t> slots_;
  std::vector<Place> last_;     // the stack interned last, outermost first
  std::vector<uint32_t> path_;  // and its nodes
};

}  // namespace forebay
