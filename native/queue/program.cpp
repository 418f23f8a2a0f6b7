#include "queue/program.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "random/draw.hpp"
#include "base/exported.hpp"
#include "os/touched_pages.hpp"

namespace forebay {
namespace {

Step step_at(const char* bytes, size_t at) {
  Step step;
  std::memcpy(&step, bytes + at, sizeof step);
  return step;
}

bool is_condition(What what) { return what == What::If || what == What::While; }

}  // namespace

bool readable_program(const void* bytes, size_t nbytes) {
  const char* program = static_cast<const char*>(bytes);
  std::vector<size_t> jumps, conditions;  // where they are
  for (size_t at = 0; at < nbytes;) {
    if (nbytes - at < sizeof(Step)) return false;
    const Step step = step_at(program, at);
    if (step.nbytes < sizeof step || step.nbytes > nbytes - at || step.what > What::Again) return false;
    const size_t more = step.nbytes - sizeof step;
    if (step.what == What::Draw ? !readable(program + at + sizeof step, more) : more != 0) return false;
    if (step.what >= What::Set) jumps.push_back(at);
    if (is_condition(step.what)) conditions.push_back(at);
    at += step.nbytes;
  }
  if (jumps.empty()) return true;
  std::vector<size_t> starts;
  for (size_t at = 0; at < nbytes; at += step_at(program, at).nbytes) starts.push_back(at);
  starts.push_back(nbytes);
  const auto among = [](const std::vector<size_t>& places, size_t at) {
    return std::binary_search(places.begin(), places.end(), at);
  };
  return std::all_of(jumps.begin(), jumps.end(), [&](size_t at) {
    const Step step = step_at(program, at);
    if (step.what == What::Set) return among(conditions, step.b);
    const size_t behind = at + step.nbytes;
    if (is_condition(step.what)) return step.b <= nbytes - behind && among(starts, behind + step.b);
    return step.a <= behind && among(conditions, behind - step.a);
  });
}

int run_program(char* bytes, size_t nbytes, const std::atomic<bool>& stop) {
  using Function = int (*)(void*);
  const auto memory = [](uint64_t address) { return reinterpret_cast<char*>(address); };
  int failure = 0;
  const auto keep = [&failure](int code) {
    if (!failure) failure = code;
  };
  for (size_t at = 0; at < nbytes && !stop;) {
    const Step step = step_at(bytes, at);
    char* const behind = bytes + at + sizeof step;
    at += step.nbytes;
    switch (step.what) {
      case What::Copy:
        std::memmove(memory(step.a), memory(step.b), step.c);
        break;
      case What::Fill:
        std::memset(memory(step.a), static_cast<int>(step.b), step.c);
        break;
      case What::Draw:
        keep(draw_packed(behind));
        break;
      case What::Native:
        keep(reinterpret_cast<Function>(step.a)(memory(step.b)));
        break;
      case What::Set: {
        const uint64_t on = *memory(step.a) != 0;
        std::memcpy(bytes + step.b + offsetof(Step, a), &on, sizeof on);
        break;
      }
      case What::If:
      case What::While:
        if (!step.a) at += step.b;
        break;
      case What::Again:
        at -= step.a;
        break;
    }
  }
  return failure;
}

std::vector<Span> program_writes(const void* bytes, size_t nbytes) {
  const char* program = static_cast<const char*>(bytes);
  std::vector<Span> found;
  for (size_t at = 0; at < nbytes;) {
    const Step step = step_at(program, at);
    if (step.what == What::Copy || step.what == What::Fill) found.push_back({step.a, step.c});
    if (step.what == What::Draw) found.push_back(written(program + at + sizeof step));
    at += step.nbytes;
  }
  return found;
}

}  // namespace forebay

// For backends/emulated/memory_budget.py: those that touch what is not counted yet, as many of them as there is room for.
EXPORTED size_t forebay_program_fresh(const void* bytes, size_t nbytes, forebay::Span* found, size_t room) noexcept {
  size_t count = 0;
  try {
    for (const forebay::Span& span : forebay::program_writes(bytes, nbytes)) {
      if (!forebay::touched::any_fresh(span.address, span.nbytes)) continue;
      if (count < room) found[count] = span;
      ++count;
    }
  } catch (const std::bad_alloc&) {
    return 0;  // not counted: that is no reason to refuse
  }
  return count;
}
