// Detection of forks: a forked child has none of its parent's threads.
#pragma once

#include <cstdint>

namespace forebay {

// Returns the number of forks between the first process and this one. A value read before a fork differs in the child.
uint64_t fork_generation() noexcept;

}  // namespace forebay
