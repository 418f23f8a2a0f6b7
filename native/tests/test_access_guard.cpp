// Tests of the access guard and of the touched-page table.
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
#include <utility>
#include <vector>

#include "os/access_guard.hpp"
#include "os/touched_pages.hpp"
#include "queue/strided_copy.hpp"
#include "queue/worker.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

constexpr int64_t kLimit = 20'000'000'000;
constexpr size_t kSize = touched::kStep;

bool finishes(Worker& queue) { return queue.wait(queue.signal(), kLimit) == Wait::Reached; }

struct Pipe {
  int ends[2];
  Pipe() {
    CHECK(pipe(ends) == 0);  // macOS before version 27 has no pipe2()
    for (const int end : ends) CHECK(fcntl(end, F_SETFL, O_NONBLOCK) == 0);
  }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
};

// Returns true if the memory is inaccessible: write() fails with EFAULT instead of raising a signal.
bool closed(const char* address) {
  Pipe pipe;
  return write(pipe.ends[1], address, 1) == -1 && errno == EFAULT;
}

struct Memory {
  char* base;
  uintptr_t address;
  size_t nbytes;
  bool guarded;

  explicit Memory(size_t size = kSize, bool guard_it = true) : nbytes(size), guarded(guard_it) {
    void* mapped =
        mmap(nullptr, size + kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(mapped != MAP_FAILED);
    address = (reinterpret_cast<uintptr_t>(mapped) + kSize - 1) / kSize * kSize;
    base = reinterpret_cast<char*>(address);
    if (guarded) guard::add(address, nbytes, address, "cuda:1");
  }
  ~Memory() {
    guard::remove(address, nbytes);
    touched::remove(address, nbytes);
    munmap(base, nbytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

// Runs `body` in a forked child. Returns the signal that ended the child, or 0, and stores the message it wrote.
template <class Body>
int fatal_signal(Body body, std::string* message = nullptr) {
  Pipe pipe;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    guard::uninstall_handler();
    signal(SIGSEGV, SIG_DFL);  // replaces a sanitizer's handler, which would end the child differently
    guard::install_handler(pipe.ends[1]);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  char text[1000];
  const ssize_t length = read(pipe.ends[0], text, sizeof text);
  if (message) message->assign(text, length > 0 ? static_cast<size_t>(length) : 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

struct AccessProbe {  // work that records whether memory is open to it
  const char* address;
  std::atomic<bool> open{false};
  static int run(void* argument) {
    auto& probe = *static_cast<AccessProbe*>(argument);
    probe.open = !closed(probe.address);
    return 0;
  }
};

}  // namespace

TEST(guarded_memory_is_open_to_queued_work_only) {
  Memory memory;
  char host[64] = {};
  Worker queue(1, 0, kGuarded);
  CHECK(closed(memory.base));
  queue.fill(memory.base, 7, kSize);
  queue.copy(host, memory.base + 100, sizeof host);
  CHECK(finishes(queue));
  CHECK(closed(memory.base));
  CHECK(host[0] == 7 && host[63] == 7);
  AccessProbe probe{memory.base + 5};
  queue.run(AccessProbe::run, &probe);
  CHECK(finishes(queue));
  CHECK(probe.open);
  CHECK(closed(memory.base));
}

TEST(work_opens_only_the_memory_it_uses) {
  Memory touched, source, target, other;
  Worker queue(1, 0, kGuarded);
  guard::begin_work();  // as if another queue were working
  queue.fill(touched.base, 7, 1);
  const StridedCopy copy{target.address + 9, source.address, 1, 1, Format::Bytes, Format::Bytes, 0, 0, 0};
  queue.copy_strided(&copy, sizeof copy);
  CHECK(finishes(queue));
  CHECK(!closed(touched.base) && !closed(source.base) && !closed(target.base));
  CHECK(closed(other.base));
  guard::end_work();
  CHECK(closed(touched.base) && closed(source.base) && closed(target.base));
}

TEST(access_to_guarded_memory_is_reported_and_fatal) {
  Memory memory;
  std::string message;
  CHECK(fatal_signal([&] { *static_cast<volatile char*>(memory.base + 4096) = 1; }, &message) == SIGSEGV);
  CHECK(message.find("forebay: cuda:1: the host touched device memory outside queued work") != std::string::npos);
  CHECK(message.find(", byte 4096 of the segment at 0x") != std::string::npos);
}

TEST(unguarded_faults_are_not_reported) {
  Memory memory;
  std::string message;
  CHECK(fatal_signal([] { *reinterpret_cast<volatile char*>(8) = 1; }, &message) == SIGSEGV);
  CHECK(fatal_signal([] { raise(SIGSEGV); }) == SIGSEGV);
  CHECK(message.empty());
}

TEST(handler_chains_to_previous_handler) {
  Memory memory;
  static Pipe pipe;
  const auto previous_handler = [](int) { (void)!write(pipe.ends[1], "previous handler", 16); };
  CHECK(fatal_signal([&] {
          guard::uninstall_handler();
          signal(SIGSEGV, previous_handler);
          guard::install_handler(pipe.ends[1]);
          *static_cast<volatile char*>(memory.base) = 1;
        }) == SIGSEGV);
  char text[1000] = {};
  CHECK(read(pipe.ends[0], text, sizeof text - 1) > 0);
  CHECK(std::strstr(text, "the host touched") && std::strstr(text, "previous handler"));
}

TEST(uninstall_restores_default_handler) {
  const int received = fatal_signal([] {
    CHECK(guard::uninstall_handler());
    struct sigaction now{};
    sigaction(SIGSEGV, nullptr, &now);
    if (now.sa_handler == SIG_DFL) raise(SIGUSR1);
  });
  CHECK(received == SIGUSR1);
}

TEST(guard_handles_partial_removal_and_overlap) {
  Memory memory(4 * kSize);
  const auto at = [&](size_t step) { return memory.base + step * kSize; };
  guard::remove(memory.address + kSize, 2 * kSize);  // in the middle
  CHECK(mprotect(at(1), 2 * kSize, PROT_READ | PROT_WRITE) == 0);
  CHECK(closed(at(0)) && !closed(at(1)) && !closed(at(2)) && closed(at(3)));
  guard::begin_work();
  guard::add(memory.address + 2 * kSize, kSize, memory.address, "cuda:1");  // open while a queue works
  CHECK(!closed(at(2)));
  guard::open(memory.address + 3 * kSize + 5, 1);
  CHECK(closed(at(0)) && !closed(at(3)));
  guard::end_work();
  CHECK(closed(at(0)) && !closed(at(1)) && closed(at(2)) && closed(at(3)));
  CHECK(mprotect(memory.base, 4 * kSize, PROT_READ | PROT_WRITE) == 0);
  guard::add(memory.address, 4 * kSize, memory.address, "cuda:1");  // over ranges guarded before
  for (size_t step = 0; step < 4; ++step) CHECK(closed(at(step)));
  Worker queue(1, 0, kGuarded);
  queue.fill(memory.base, 3, 4 * kSize);
  CHECK(finishes(queue));
}

TEST(fork_closes_guarded_memory_in_child) {
  Memory memory;
  guard::begin_work();
  guard::open(memory.address, 1);
  CHECK(!closed(memory.base));
  CHECK(fatal_signal([&] { (void)*static_cast<volatile char*>(memory.base); }) == SIGSEGV);
  CHECK(!closed(memory.base));
  guard::end_work();
  CHECK(closed(memory.base));
}

TEST(guard_is_thread_safe_while_ranges_change) {
  Memory shared(8 * kSize);
  std::vector<std::thread> threads;
  std::atomic<int> succeeded{0};
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([&, number] {
      Worker queue(static_cast<uint64_t>(number), 0, kGuarded | kCounted);
      char* part = shared.base + static_cast<size_t>(number) * kSize;
      std::vector<char> host(100);
      bool good = true;
      for (int round = 0; round < 50; ++round) {
        Memory own;
        touched::add(own.address, kSize);
        touched::mark_touched(own.address, kSize);
        queue.fill(part, round, kSize);
        queue.copy(own.base, part, kSize);
        queue.copy(host.data(), own.base, host.size());
        good = good && finishes(queue) && host[99] == static_cast<char>(round);
      }
      succeeded += good && queue.close(kLimit);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(succeeded == 8);
  for (size_t step = 0; step < 8; ++step) CHECK(closed(shared.base + step * kSize));
  CHECK(touched::total_touched() == 0);
}

TEST(touched_steps_are_counted_once) {
  Memory memory(200 * kSize, false);
  touched::add(memory.address, memory.nbytes - 5);  // the last step is partial
  CHECK(touched::untouched_bytes(memory.address, memory.nbytes) == memory.nbytes);
  CHECK(!touched::any_untouched(memory.address, 0));
  touched::mark_touched(memory.address + 3 * kSize - 1, 2);  // two steps
  CHECK(touched::total_touched() == 2 * kSize);
  CHECK(!touched::any_untouched(memory.address + 2 * kSize, 2 * kSize));
  CHECK(touched::any_untouched(memory.address + 2 * kSize, 2 * kSize + 1));
  touched::mark_touched(memory.address, 150 * kSize);
  touched::add(memory.address, memory.nbytes);  // tracked before
  CHECK(touched::total_touched() == 150 * kSize);
  memory.base[0] = 1;
  CHECK(touched::resident_bytes(memory.address, memory.nbytes) >= static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  CHECK(touched::resident_bytes(memory.address, memory.nbytes) <= kSize);
  touched::remove(memory.address + 100 * kSize, 100 * kSize);
  CHECK(touched::total_touched() == 100 * kSize);
  CHECK(touched::untouched_bytes(memory.address, memory.nbytes) == 0);
  touched::remove(memory.address, memory.nbytes);
  CHECK(touched::total_touched() == 0);
}

TEST(counted_queue_rejects_uncounted_memory) {
  Memory memory(2 * kSize, false);
  touched::add(memory.address, 2 * kSize);
  Worker counting(1, 0, kCounted), other(2);
  const auto rejected = [&](Worker& queue, char* at) {
    try {
      queue.fill(at, 1, 1);
      return false;
    } catch (const std::bad_alloc&) {
      return true;
    }
  };
  CHECK(rejected(counting, memory.base));
  CHECK(counting.idle());
  CHECK(!rejected(other, memory.base + 64));
  touched::mark_touched(memory.address, 1);
  CHECK(!rejected(counting, memory.base));
  CHECK(rejected(counting, memory.base + kSize));
  StridedCopy copy{memory.address, memory.address + kSize, 1, 1, Format::Bytes, Format::Bytes, 0, 0, 0};
  counting.copy_strided(&copy, sizeof copy);
  std::swap(copy.to, copy.source);
  bool refused = false;
  try {
    counting.copy_strided(&copy, sizeof copy);
  } catch (const UncountedMemory&) {
    refused = true;
  }
  CHECK(refused);
  counting.copy(memory.base, memory.base + kSize, 10);  // reads need no counted memory
  CHECK(finishes(counting) && finishes(other));
  CHECK(counting.close(kLimit));
  CHECK(check::error_of([&] { counting.fill(memory.base + kSize, 1, 1); }) == "queue 1 was closed");
}

TEST(invalid_addresses_are_ignored) {
  for (const uintptr_t address : {uintptr_t{0}, uintptr_t{1} << 48, ~uintptr_t{0} - 3}) {
    CHECK(!touched::any_untouched(address, ~size_t{0}));
    CHECK(touched::untouched_bytes(address, 100) == 0);
    touched::remove(address, 100);
    touched::mark_touched(address, ~size_t{0});
    guard::open(address, ~size_t{0});
    guard::remove(address, 1);
  }
}

int main(int count, char** arguments) { return check::run_all(count > 1 ? arguments[1] : ""); }
