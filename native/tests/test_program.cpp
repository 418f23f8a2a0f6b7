// Programs: their steps in order, conditions that are looked at in their turn, and bytes that are none.
#include <cstring>
#include <vector>

#include "pool/check.hpp"
#include "random/draw.hpp"
#include "queue/program.hpp"
#include "queue/worker.hpp"

using namespace forebay;

namespace {

template <class T>
uint64_t at(T* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

struct Bytes : std::vector<char> {
  size_t add(What what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    const Step step{what, sizeof(Step), a, b, c};
    const char* bytes = reinterpret_cast<const char*>(&step);
    insert(end(), bytes, bytes + sizeof step);
    return size() - sizeof step;
  }
  void behind(size_t step, size_t field, uint64_t value) { std::memcpy(data() + step + field, &value, sizeof value); }
};

int count_down(void* argument) { return --*static_cast<char*>(argument), 0; }
int seven(void*) { return 7; }

}  // namespace

TEST(steps_run_in_their_order) {
  char from[8] = "penstoc", to[8] = {};
  Bytes program;
  program.add(What::Copy, at(to), at(from), 8);
  program.add(What::Fill, at(from), 'x', 8);
  program.add(What::Fill, at(to), 'P', 1);
  Worker queue;
  queue.program(program.data(), program.size());
  program.assign(program.size(), 0);  // it has its own
  CHECK(queue.wait(queue.signal()) == Wait::Reached);
  CHECK(std::string(to) == "Penstoc");
  CHECK(from[0] == 'x' && from[7] == 'x');
}

TEST(a_step_that_fails_is_told_and_the_rest_runs) {
  char byte = 0;
  Bytes program;
  program.add(What::Native, reinterpret_cast<uint64_t>(&seven), 0);
  program.add(What::Fill, at(&byte), 5, 1);
  Worker queue;
  queue.program(program.data(), program.size());
  CHECK(queue.wait(queue.signal()) == Wait::Reached);
  CHECK(queue.take_failure().code == 7);
  CHECK(byte == 5);
}

TEST(a_body_runs_if_its_byte_is_not_zero_when_it_is_set) {
  for (const char on : {0, 1}) {
    char condition = 0, byte = 0;
    Bytes program;
    program.add(What::Fill, at(&condition), static_cast<uint64_t>(on), 1);
    const size_t set = program.add(What::Set, at(&condition));
    const size_t what = program.add(What::If);
    program.behind(set, offsetof(Step, b), what);
    program.add(What::Fill, at(&byte), 9, 1);
    program.behind(what, offsetof(Step, b), sizeof(Step));
    Worker queue;
    queue.program(program.data(), program.size());
    CHECK(queue.wait(queue.signal()) == Wait::Reached);
    CHECK(byte == (on ? 9 : 0));
  }
}

TEST(a_loop_runs_until_its_byte_is_zero) {
  char rounds = 5, left = 5, seen = 0;
  Bytes program;
  const size_t set = program.add(What::Set, at(&left));
  const size_t loop = program.add(What::While);
  program.behind(set, offsetof(Step, b), loop);
  program.add(What::Native, reinterpret_cast<uint64_t>(&count_down), at(&left));
  program.add(What::Copy, at(&seen), at(&left), 1);
  program.add(What::Set, at(&left), loop);
  const size_t again = program.add(What::Again);
  program.behind(again, offsetof(Step, a), program.size() - loop);
  program.behind(loop, offsetof(Step, b), program.size() - loop - sizeof(Step));
  Worker queue;
  for (int i = 0; i < 2; ++i) {
    left = rounds;
    seen = 1;
    queue.program(program.data(), program.size());
    CHECK(queue.wait(queue.signal()) == Wait::Reached);
    CHECK(left == 0 && seen == 0);
  }
}

TEST(an_endless_loop_ends_with_its_queue) {
  static char on = 1;  // the queue's thread may read it after the test
  Bytes program;
  const size_t set = program.add(What::Set, at(&on));
  const size_t loop = program.add(What::While);
  program.behind(set, offsetof(Step, b), loop);
  program.add(What::Again, 2 * sizeof(Step));
  program.behind(loop, offsetof(Step, b), sizeof(Step));
  Worker queue;
  queue.program(program.data(), program.size());
  CHECK(!queue.close(1'000'000));
}

TEST(what_is_no_program_is_refused) {
  char byte = 0;
  std::vector<Bytes> wrong(6);
  wrong[0].resize(5);
  wrong[1].add(static_cast<What>(8));
  wrong[2].add(What::Draw);               // nothing behind it
  wrong[3].add(What::Set, at(&byte), 0);  // of what is no condition
  wrong[4].add(What::If, 0, 8);           // out of it
  wrong[5].add(What::Fill, at(&byte), 1, 1);
  wrong[5].add(What::Again, 2 * sizeof(Step));  // back to what is no loop
  Worker queue;
  for (const Bytes& bytes : wrong) {
    CHECK(check::refusal([&] { queue.program(bytes.data(), bytes.size()); }) == "these bytes are no program");
  }
  CHECK(queue.idle());
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
