#include "base/process.hpp"

#include <pthread.h>

#include <atomic>

namespace forebay {
namespace {

std::atomic<uint64_t> generation{1};
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

}  // namespace forebay
