// Tests of programs: order of steps, conditions, and validation.
#include <cstring>
#include <vector>

#include "queue/program.hpp"
#include "queue/strided_copy.hpp"
#include "queue/worker.hpp"
#include "random/draw.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

template <class T>
uint64_t address_of(T* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

struct ProgramBytes : std::vector<char> {
  size_t add(Opcode opcode, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    const Step step{opcode, sizeof(Step), a, b, c};
    const char* bytes = reinterpret_cast<const char*>(&step);
    insert(end(), bytes, bytes + sizeof step);
    return size() - sizeof step;
  }
  void add_with_operands(Opcode opcode, const std::vector<char>& operands) {
    const Step step{opcode, static_cast<uint32_t>(sizeof(Step) + operands.size()), 0, 0, 0};
    const char* bytes = reinterpret_cast<const char*>(&step);
    insert(end(), bytes, bytes + sizeof step);
    insert(end(), operands.begin(), operands.end());
  }
  void patch(size_t step, size_t field, uint64_t value) { std::memcpy(data() + step + field, &value, sizeof value); }
};

int count_down(void* argument) { return --*static_cast<char*>(argument), 0; }
int return_seven(void*) { return 7; }

}  // namespace

TEST(program_runs_steps_in_order) {
  char from[8] = "penstoc", to[8] = {};
  ProgramBytes program;
  program.add(Opcode::Copy, address_of(to), address_of(from), 8);
  program.add(Opcode::Fill, address_of(from), 'x', 8);
  program.add(Opcode::Fill, address_of(to), 'P', 1);
  Worker queue;
  queue.program(program.data(), program.size());
  program.assign(program.size(), 0);  // the queue has its own copy
  CHECK(queue.wait(queue.signal()) == Wait::Reached);
  CHECK(std::string(to) == "Penstoc");
  CHECK(from[0] == 'x' && from[7] == 'x');
}

TEST(program_runs_strided_copies) {
  int32_t from[3] = {1, 2, 3};
  double to[3] = {};
  StridedCopy copy{address_of(to + 2), address_of(from), 8, 4, Format::F64, Format::I32, 0, 1, 0};
  const CopyAxis axis{3, -8, 4};
  std::vector<char> packed(sizeof copy + sizeof axis);
  std::memcpy(packed.data(), &copy, sizeof copy);
  std::memcpy(packed.data() + sizeof copy, &axis, sizeof axis);
  ProgramBytes program;
  program.add(Opcode::Fill, address_of(from), 0, 4);
  program.add_with_operands(Opcode::StridedCopy, packed);
  program.add(Opcode::Fill, address_of(from), 0, 12);
  Worker queue;
  queue.program(program.data(), program.size());
  CHECK(queue.wait(queue.signal()) == Wait::Reached);
  CHECK(to[0] == 3 && to[1] == 2 && to[2] == 0 && from[2] == 0);
  const std::vector<Span> spans = written_spans(program.data(), program.size());
  CHECK(spans.size() == 3 && spans[1].address == address_of(to) && spans[1].nbytes == 24);
}

TEST(program_reports_failed_step_and_continues) {
  char byte = 0;
  ProgramBytes program;
  program.add(Opcode::Call, reinterpret_cast<uint64_t>(&return_seven), 0);
  program.add(Opcode::Fill, address_of(&byte), 5, 1);
  Worker queue;
  queue.program(program.data(), program.size());
  CHECK(queue.wait(queue.signal()) == Wait::Reached);
  CHECK(queue.take_failure().code == 7);
  CHECK(byte == 5);
}

TEST(if_body_runs_when_condition_is_nonzero) {
  for (const char on : {0, 1}) {
    char condition = 0, byte = 0;
    ProgramBytes program;
    program.add(Opcode::Fill, address_of(&condition), static_cast<uint64_t>(on), 1);
    const size_t set = program.add(Opcode::SetCondition, address_of(&condition));
    const size_t condition_step = program.add(Opcode::If);
    program.patch(set, offsetof(Step, b), condition_step);
    program.add(Opcode::Fill, address_of(&byte), 9, 1);
    program.patch(condition_step, offsetof(Step, b), sizeof(Step));
    Worker queue;
    queue.program(program.data(), program.size());
    CHECK(queue.wait(queue.signal()) == Wait::Reached);
    CHECK(byte == (on ? 9 : 0));
  }
}

TEST(while_loop_runs_until_condition_is_zero) {
  char rounds = 5, left = 5, seen = 0;
  ProgramBytes program;
  const size_t set = program.add(Opcode::SetCondition, address_of(&left));
  const size_t loop = program.add(Opcode::While);
  program.patch(set, offsetof(Step, b), loop);
  program.add(Opcode::Call, reinterpret_cast<uint64_t>(&count_down), address_of(&left));
  program.add(Opcode::Copy, address_of(&seen), address_of(&left), 1);
  program.add(Opcode::SetCondition, address_of(&left), loop);
  const size_t again = program.add(Opcode::EndWhile);
  program.patch(again, offsetof(Step, a), program.size() - loop);
  program.patch(loop, offsetof(Step, b), program.size() - loop - sizeof(Step));
  Worker queue;
  for (int i = 0; i < 2; ++i) {
    left = rounds;
    seen = 1;
    queue.program(program.data(), program.size());
    CHECK(queue.wait(queue.signal()) == Wait::Reached);
    CHECK(left == 0 && seen == 0);
  }
}

TEST(endless_loop_ends_when_queue_is_discarded) {
  static char on = 1;  // the queue's thread may read it after the test
  ProgramBytes program;
  const size_t set = program.add(Opcode::SetCondition, address_of(&on));
  const size_t loop = program.add(Opcode::While);
  program.patch(set, offsetof(Step, b), loop);
  program.add(Opcode::EndWhile, 2 * sizeof(Step));
  program.patch(loop, offsetof(Step, b), sizeof(Step));
  Worker queue;
  queue.program(program.data(), program.size());
  CHECK(!queue.close(1'000'000));
}

TEST(invalid_programs_are_rejected) {
  char byte = 0;
  std::vector<ProgramBytes> invalid(7);
  invalid[0].resize(5);
  invalid[1].add(static_cast<Opcode>(9));
  invalid[2].add(Opcode::Draw);                                // without operands
  invalid[3].add(Opcode::SetCondition, address_of(&byte), 0);  // no condition there
  invalid[4].add(Opcode::If, 0, 8);                            // jumps out of the program
  invalid[5].add(Opcode::Fill, address_of(&byte), 1, 1);
  invalid[5].add(Opcode::EndWhile, 2 * sizeof(Step));  // jumps to a step that is no loop
  invalid[6].add_with_operands(Opcode::StridedCopy, std::vector<char>(40));
  Worker queue;
  for (const ProgramBytes& bytes : invalid) {
    CHECK(check::error_of([&] { queue.program(bytes.data(), bytes.size()); }) == "invalid program");
  }
  CHECK(queue.idle());
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
