// Which process this is, counted along the line of forks: a forked child has none of its parent's threads.
#pragma once

#include <cstdint>

namespace forebay {

uint64_t process_generation() noexcept;  // as read before a fork and after it, in the child, it differs

}  // namespace forebay
