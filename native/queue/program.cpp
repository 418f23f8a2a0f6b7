#include "queue/program.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/c_api.hpp"
#include "os/touched_pages.hpp"
#include "queue/strided_copy.hpp"
#include "random/draw.hpp"

namespace forebay {
namespace {

Step step_at(const char* bytes, size_t at) {
  Step step;
  std::memcpy(&step, bytes + at, sizeof step);
  return step;
}

// Null addresses are errors of the caller; no others can be told from valid ones.
bool has_addresses(const Step& step) {
  if (step.opcode == Opcode::Copy) return !step.c || (step.a && step.b);
  if (step.opcode == Opcode::Fill) return !step.c || step.a;
  return (step.opcode != Opcode::Call && step.opcode != Opcode::SetCondition) || step.a;
}

bool are_valid_operands(Opcode opcode, const char* operands, size_t nbytes) {
  if (opcode == Opcode::Draw) return is_valid_draw(operands, nbytes);
  if (opcode == Opcode::StridedCopy) return is_valid_strided_copy(operands, nbytes);
  return nbytes == 0;
}

bool is_condition(Opcode opcode) { return opcode == Opcode::If || opcode == Opcode::While; }

}  // namespace

bool is_valid_program(const void* bytes, size_t nbytes) {
  const char* program = static_cast<const char*>(bytes);
  std::vector<size_t> jumps, conditions;  // offsets
  for (size_t at = 0; at < nbytes;) {
    if (nbytes - at < sizeof(Step)) return false;
    const Step step = step_at(program, at);
    if (step.nbytes < sizeof step || step.nbytes > nbytes - at || step.opcode > Opcode::EndWhile) return false;
    if (!has_addresses(step) || !are_valid_operands(step.opcode, program + at + sizeof step, step.nbytes - sizeof step))
      return false;
    if (step.opcode >= Opcode::SetCondition) jumps.push_back(at);
    if (is_condition(step.opcode)) conditions.push_back(at);
    at += step.nbytes;
  }
  if (jumps.empty()) return true;
  std::vector<size_t> starts;
  for (size_t at = 0; at < nbytes; at += step_at(program, at).nbytes) starts.push_back(at);
  starts.push_back(nbytes);
  const auto contains = [](const std::vector<size_t>& offsets, size_t at) {
    return std::binary_search(offsets.begin(), offsets.end(), at);
  };
  return std::all_of(jumps.begin(), jumps.end(), [&](size_t at) {
    const Step step = step_at(program, at);
    if (step.opcode == Opcode::SetCondition) return contains(conditions, step.b);
    const size_t end = at + step.nbytes;
    if (is_condition(step.opcode)) return step.b <= nbytes - end && contains(starts, end + step.b);
    return step.a <= end && contains(conditions, end - step.a);
  });
}

int run_program(char* bytes, size_t nbytes, const std::atomic<bool>& stop) {
  using Function = int (*)(void*);
  const auto memory = [](uint64_t address) { return reinterpret_cast<char*>(address); };
  int failure = 0;
  const auto record_failure = [&failure](int code) {
    if (!failure) failure = code;
  };
  for (size_t at = 0; at < nbytes && !stop;) {
    const Step step = step_at(bytes, at);
    char* const operands = bytes + at + sizeof step;
    at += step.nbytes;
    switch (step.opcode) {
      case Opcode::Copy:
        std::memmove(memory(step.a), memory(step.b), step.c);
        break;
      case Opcode::Fill:
        std::memset(memory(step.a), static_cast<int>(step.b), step.c);
        break;
      case Opcode::Draw:
        record_failure(run_packed_draw(operands));
        break;
      case Opcode::StridedCopy:
        record_failure(run_strided_copy(operands));
        break;
      case Opcode::Call:
        record_failure(reinterpret_cast<Function>(step.a)(memory(step.b)));
        break;
      case Opcode::SetCondition: {
        const uint64_t value = *memory(step.a) != 0;
        std::memcpy(bytes + step.b + offsetof(Step, a), &value, sizeof value);
        break;
      }
      case Opcode::If:
      case Opcode::While:
        if (!step.a) at += step.b;
        break;
      case Opcode::EndWhile:
        at -= step.a;
        break;
    }
  }
  return failure;
}

std::vector<Span> written_spans(const void* bytes, size_t nbytes) {
  const char* program = static_cast<const char*>(bytes);
  std::vector<Span> found;
  for (size_t at = 0; at < nbytes;) {
    const Step step = step_at(program, at);
    if (step.opcode == Opcode::Copy || step.opcode == Opcode::Fill) found.push_back({step.a, step.c});
    if (step.opcode == Opcode::Draw) found.push_back(written_span(program + at + sizeof step));
    if (step.opcode == Opcode::StridedCopy) {
      any_written_span(program + at + sizeof step, [&](Span span) { return found.push_back(span), false; });
    }
    at += step.nbytes;
  }
  return found;
}

}  // namespace forebay

// For backends/emulated/memory_budget.py: stores up to `capacity` written spans that contain untouched memory, and
// returns their total number.
EXPORTED size_t forebay_program_fresh(const void* bytes, size_t nbytes, forebay::Span* found,
                                      size_t capacity) noexcept {
  size_t count = 0;
  try {
    for (const forebay::Span& span : forebay::written_spans(bytes, nbytes)) {
      if (!forebay::touched::any_untouched(span.address, span.nbytes)) continue;
      if (count < capacity) found[count] = span;
      ++count;
    }
  } catch (const std::bad_alloc&) {
    return 0;  // without the list the work is not counted, but it is allowed
  }
  return count;
}
