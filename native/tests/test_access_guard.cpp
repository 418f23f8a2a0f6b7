// Guarded memory: who may touch it and when, what is said of who may not, and what was touched at all.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "pool/check.hpp"
#include "os/access_guard.hpp"
#include "os/touched_pages.hpp"
#include "queue/worker.hpp"

using namespace forebay;

namespace {

constexpr int64_t kLimit = 20'000'000'000;
constexpr size_t kSize = touched::kStep;

bool finishes(Worker& queue) { return queue.wait(queue.signal(), kLimit) == Wait::Reached; }

struct Pipe {
  int ends[2];
  Pipe() { CHECK(pipe2(ends, O_NONBLOCK) == 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
};

// The system itself cannot read it, which it says without a signal.
bool closed(const char* address) {
  Pipe pipe;
  return write(pipe.ends[1], address, 1) == -1 && errno == EFAULT;
}

struct Memory {
  char* base;
  uintptr_t address;
  size_t nbytes;
  bool guarded;

  explicit Memory(size_t size = kSize, bool in_guard = true) : nbytes(size), guarded(in_guard) {
    void* got = mmap(nullptr, size + kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(got != MAP_FAILED);
    address = (reinterpret_cast<uintptr_t>(got) + kSize - 1) / kSize * kSize;
    base = reinterpret_cast<char*>(address);
    if (guarded) guard::add(address, nbytes, address, "cuda:1");
  }
  ~Memory() {
    guard::remove(address, nbytes);
    touched::drop(address, nbytes);
    munmap(base, nbytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

// The signal that ends a child which does this, and all that it says there.
template <class Body>
int dies(Body body, std::string* said = nullptr) {
  Pipe pipe;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    guard::unwatch();
    signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would end it in its own way
    guard::watch(pipe.ends[1]);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  char text[1000];
  const ssize_t length = read(pipe.ends[0], text, sizeof text);
  if (said) said->assign(text, length > 0 ? static_cast<size_t>(length) : 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

struct Look {  // work that tells whether memory is open to it
  const char* at;
  std::atomic<bool> open{false};
  static int run(void* argument) {
    auto& look = *static_cast<Look*>(argument);
    look.open = !closed(look.at);
    return 0;
  }
};

}  // namespace

TEST(only_queued_work_touches_guarded_memory) {
  Memory memory;
  char host[64] = {};
  Worker queue(1, 0, kGuarded);
  CHECK(closed(memory.base));
  queue.fill(memory.base, 7, kSize);
  queue.copy(host, memory.base + 100, sizeof host);
  CHECK(finishes(queue));
  CHECK(closed(memory.base));
  CHECK(host[0] == 7 && host[63] == 7);
  Look look{memory.base + 5};
  queue.run(Look::run, &look);
  CHECK(finishes(queue));
  CHECK(look.open);
  CHECK(closed(memory.base));
}

TEST(other_memory_stays_closed_while_a_queue_works) {
  Memory touched, other;
  Worker queue(1, 0, kGuarded);
  guard::enter();  // as another queue at work
  queue.fill(touched.base, 7, 1);
  CHECK(finishes(queue));
  CHECK(!closed(touched.base));
  CHECK(closed(other.base));
  guard::leave();
  CHECK(closed(touched.base));
}

TEST(what_touches_it_is_told_and_dies) {
  Memory memory;
  std::string said;
  CHECK(dies([&] { *static_cast<volatile char*>(memory.base + 4096) = 1; }, &said) == SIGSEGV);
  CHECK(said.find("forebay: cuda:1: the host touched device memory outside queued work") != std::string::npos);
  CHECK(said.find(", byte 4096 of the segment at 0x") != std::string::npos);
}

TEST(other_mistakes_are_not_ours_to_tell) {
  Memory memory;
  std::string said;
  CHECK(dies([] { *reinterpret_cast<volatile char*>(8) = 1; }, &said) == SIGSEGV);
  CHECK(dies([] { raise(SIGSEGV); }) == SIGSEGV);
  CHECK(said.empty());
}

TEST(whoever_had_the_signal_goes_on) {
  Memory memory;
  static Pipe pipe;
  const auto shows = [](int) { (void)!write(pipe.ends[1], "and then I", 10); };
  CHECK(dies([&] {
          guard::unwatch();
          signal(SIGSEGV, shows);
          guard::watch(pipe.ends[1]);
          *static_cast<volatile char*>(memory.base) = 1;
        }) == SIGSEGV);
  char text[1000] = {};
  CHECK(read(pipe.ends[0], text, sizeof text - 1) > 0);
  CHECK(std::strstr(text, "the host touched") && std::strstr(text, "and then I"));
}

TEST(nobody_watches_any_more) {
  const int ended = dies([] {
    CHECK(guard::unwatch());
    struct sigaction now{};
    sigaction(SIGSEGV, nullptr, &now);
    if (now.sa_handler == SIG_DFL) raise(SIGUSR1);
  });
  CHECK(ended == SIGUSR1);
}

TEST(parts_come_and_go) {
  Memory memory(4 * kSize);
  const auto at = [&](size_t step) { return memory.base + step * kSize; };
  guard::remove(memory.address + kSize, 2 * kSize);  // in the middle
  CHECK(mprotect(at(1), 2 * kSize, PROT_READ | PROT_WRITE) == 0);
  CHECK(closed(at(0)) && !closed(at(1)) && !closed(at(2)) && closed(at(3)));
  guard::enter();
  guard::add(memory.address + 2 * kSize, kSize, memory.address, "cuda:1");  // open while somebody works
  CHECK(!closed(at(2)));
  guard::open(memory.address + 3 * kSize + 5, 1);
  CHECK(closed(at(0)) && !closed(at(3)));
  guard::leave();
  CHECK(closed(at(0)) && !closed(at(1)) && closed(at(2)) && closed(at(3)));
  CHECK(mprotect(memory.base, 4 * kSize, PROT_READ | PROT_WRITE) == 0);
  guard::add(memory.address, 4 * kSize, memory.address, "cuda:1");  // over what is there
  for (size_t step = 0; step < 4; ++step) CHECK(closed(at(step)));
  Worker queue(1, 0, kGuarded);
  queue.fill(memory.base, 3, 4 * kSize);
  CHECK(finishes(queue));
}

TEST(a_forked_childs_copy_is_closed) {
  Memory memory;
  guard::enter();
  guard::open(memory.address, 1);
  CHECK(!closed(memory.base));
  CHECK(dies([&] { (void)*static_cast<volatile char*>(memory.base); }) == SIGSEGV);
  CHECK(!closed(memory.base));
  guard::leave();
  CHECK(closed(memory.base));
}

TEST(eight_threads_work_while_memory_comes_and_goes) {
  Memory shared(8 * kSize);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([&, number] {
      Worker queue(static_cast<uint64_t>(number), 0, kGuarded | kCounted);
      char* mine = shared.base + static_cast<size_t>(number) * kSize;
      std::vector<char> host(100);
      bool good = true;
      for (int round = 0; round < 50; ++round) {
        Memory own;
        touched::add(own.address, kSize);
        touched::mark(own.address, kSize);
        queue.fill(mine, round, kSize);
        queue.copy(own.base, mine, kSize);
        queue.copy(host.data(), own.base, host.size());
        good = good && finishes(queue) && host[99] == static_cast<char>(round);
      }
      right += good && queue.close(kLimit);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 8);
  for (size_t step = 0; step < 8; ++step) CHECK(closed(shared.base + step * kSize));
  CHECK(touched::total() == 0);
}

TEST(steps_are_counted_once) {
  Memory memory(200 * kSize, false);
  touched::add(memory.address, memory.nbytes - 5);  // its last step is not a whole one
  CHECK(touched::count_fresh(memory.address, memory.nbytes) == memory.nbytes);
  CHECK(!touched::any_fresh(memory.address, 0));
  touched::mark(memory.address + 3 * kSize - 1, 2);  // two of them
  CHECK(touched::total() == 2 * kSize);
  CHECK(!touched::any_fresh(memory.address + 2 * kSize, 2 * kSize));
  CHECK(touched::any_fresh(memory.address + 2 * kSize, 2 * kSize + 1));
  touched::mark(memory.address, 150 * kSize);
  touched::add(memory.address, memory.nbytes);  // had all of it before
  CHECK(touched::total() == 150 * kSize);
  memory.base[0] = 1;
  CHECK(touched::count_resident(memory.address, memory.nbytes) >= static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  CHECK(touched::count_resident(memory.address, memory.nbytes) <= kSize);
  touched::drop(memory.address + 100 * kSize, 100 * kSize);
  CHECK(touched::total() == 100 * kSize);
  CHECK(touched::count_fresh(memory.address, memory.nbytes) == 0);
  touched::drop(memory.address, memory.nbytes);
  CHECK(touched::total() == 0);
}

TEST(a_queue_refuses_what_is_not_counted_and_has_queued_nothing) {
  Memory memory(2 * kSize, false);
  touched::add(memory.address, 2 * kSize);
  Worker counting(1, 0, kCounted), other(2);
  const auto refused = [&](Worker& queue, char* at) {
    try {
      queue.fill(at, 1, 1);
      return false;
    } catch (const std::bad_alloc&) {
      return true;
    }
  };
  CHECK(refused(counting, memory.base));
  CHECK(counting.idle());
  CHECK(!refused(other, memory.base + 64));
  touched::mark(memory.address, 1);
  CHECK(!refused(counting, memory.base));
  CHECK(refused(counting, memory.base + kSize));
  counting.copy(memory.base, memory.base + kSize, 10);  // reading costs nothing
  CHECK(finishes(counting) && finishes(other));
  CHECK(counting.close(kLimit));
  CHECK(check::refusal([&] { counting.fill(memory.base + kSize, 1, 1); }) == "queue 1 was closed");
}

TEST(addresses_that_no_process_has_are_nobodys) {
  for (const uintptr_t address : {uintptr_t{0}, uintptr_t{1} << 48, ~uintptr_t{0} - 3}) {
    CHECK(!touched::any_fresh(address, ~size_t{0}));
    CHECK(touched::count_fresh(address, 100) == 0);
    touched::drop(address, 100);
    touched::mark(address, ~size_t{0});
    guard::open(address, ~size_t{0});
    guard::remove(address, 1);
  }
}

int main(int count, char** arguments) { return check::run_all(count > 1 ? arguments[1] : ""); }
