// Worker of one in-order queue: the thread's side (first half) and the thread-safe callers' side (second half).
#include "queue/worker.hpp"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "os/access_guard.hpp"
#include "os/signal_mask.hpp"
#include "os/touched_pages.hpp"
#include "queue/busy_meter.hpp"
#include "queue/command.hpp"
#include "queue/program.hpp"
#include "queue/strided_copy.hpp"
#include "random/draw.hpp"

namespace forebay {
namespace {

// Locks by retrying before sleeping: a queue's mutex is held for a few instructions only, and a sleep costs a hundred
// times more.
std::unique_lock<std::mutex> spin_lock(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  for (int i = 0; i < 100 && !lock; ++i, cpu_pause()) lock.try_lock();
  if (!lock) lock.lock();
  return lock;
}

}  // namespace

// ---- The thread's side

struct Worker::State : std::enable_shared_from_this<Worker::State> {
  static constexpr size_t kPastEnd = std::numeric_limits<size_t>::max() / 2;  // beyond the end of any batch
  static constexpr size_t kMaxSpareCapacity = 4096;                           // commands; larger buffers are not reused

  State(std::shared_ptr<Timeline> line, uint64_t name, int nice, bool guards)
      : timeline(std::move(line)), handle(name), priority(nice), guarded(guards) {}

  [[noreturn]] void throw_error(const char* why) const;
  uint64_t push(Command&& command);
  static void thread_main(std::shared_ptr<State> self);
  void execute(Command& command);
  void park();
  bool next_batch();
  bool is_done() const;
  void record_failure(Failure::Cause cause, int code);
  std::vector<void*> discard(std::unique_lock<std::mutex>& lock);

  void operator()(const Copy& c);
  void operator()(const Fill& c);
  void operator()(const DrawCommand& c);
  void operator()(const StridedCopyCommand& c);
  void operator()(const Program& c);
  void operator()(const Run& c);
  void operator()(const Signal& c);
  void operator()(const WaitFor& c);

  const std::shared_ptr<Timeline> timeline;
  const uint64_t handle;
  const int priority;
  const bool guarded;
  guard::GuardScope guard_scope;  // the thread's own
  std::atomic<bool> closed{false}, discarded{false}, failed{false};
  std::atomic<bool> has_work{false};   // polled by an idle thread
  std::atomic<int> calls{0};           // host-language calls, queued or running
  std::atomic<int> paused{0};          // number of pauses; incremented under the mutex
  std::atomic<bool> suspended{false};  // its work is waiting and touches no memory

  std::mutex mutex;  // guards the following fields, except that the thread reads `batch` and owns `spent`
  std::condition_variable changed;
  std::atomic<uint64_t> submitted{0};
  bool started = false, sleeping = false, finished = false, ends_in_signal = false, parked = false;
  std::thread thread;
  std::shared_ptr<Timeline> waiting_on;
  Failure failure;
  std::vector<Command> inbox, batch, spent;  // rotated, so that a steady state allocates nothing
  BusyMeter busy;
  std::vector<std::weak_ptr<Log>> logs;

  alignas(kCacheLine) std::atomic<size_t> next{
      0};                            // index in the batch; advancing it past a command claims the command
  std::atomic<bool> working{false};  // a batch is in progress
  // The thread's own:
  uint64_t started_items = 0, finished_items = 0;  // signals excluded
  std::vector<std::shared_ptr<Log>> active_logs;   // those still referenced, during a batch
};

namespace {
thread_local const void* current_state = nullptr;  // of the queue that runs on this thread
thread_local std::atomic<bool>* current_suspended = nullptr;
thread_local BusyMeter* current_busy = nullptr;
}  // namespace

void Worker::State::throw_error(const char* why) const {
  throw std::invalid_argument("queue " + std::to_string(handle) + " " + why);
}

// Queues a command. Returns the first tick after the command, or the signal's own tick.
uint64_t Worker::State::push(Command&& command) {
  const bool is_signal = std::holds_alternative<Signal>(command);
  const Run* run = std::get_if<Run>(&command);
  const bool host_call = run && run->host_call;
  auto lock = spin_lock(mutex);
  if (closed) throw_error("was closed");
  if (!started) {
    const SignalsBlocked in_thread;
    thread = std::thread(thread_main, shared_from_this());
  }
  started = true;
  inbox.push_back(std::move(command));
  if (!is_signal) submitted.store(submitted.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (host_call) ++calls;
  const uint64_t tick = timeline->signalled() + 1;
  if (is_signal) timeline->signal();
  ends_in_signal = is_signal;
  if (!has_work.load(std::memory_order_relaxed)) has_work.store(true, std::memory_order_release);
  const bool wake = sleeping;
  lock.unlock();
  if (wake) changed.notify_one();
  return tick;
}

void Worker::State::thread_main(std::shared_ptr<State> self) {
  current_state = self.get();
  current_suspended = &self->suspended;
  current_busy = &self->busy;
#ifdef __linux__
  pthread_setname_np(pthread_self(), "forebay");
  if (self->priority) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + self->priority);  // 0: this thread
#endif
  while (self->next_batch()) {
    for (size_t i; (i = self->next.fetch_add(1)) < self->batch.size();) {
      if (self->paused)
        self->park();  // read after `next` moved, as pause() reads the state after it incremented `paused`
      self->execute(self->batch[i]);
      if (self->timeline->forked())
        return;  // a call forked, and this is the child: the remaining work belongs to the parent
    }
    if (self->guarded) self->guard_scope.end();
  }
  std::lock_guard<std::mutex> lock(self->mutex);
  self->finished = true;
  self->changed.notify_all();
}

void Worker::State::execute(Command& command) {
  const uint64_t number = std::holds_alternative<Signal>(command) ? 0 : ++started_items;
  if (number == 0) return std::visit(*this, command);
  if (active_logs.empty()) {
    std::visit(*this, command);
    finished_items = number;
    return;
  }
  const int64_t began = steady_nanos();
  for (const auto& log : active_logs) log->begin(number, began);
  std::visit(*this, command);
  const int64_t ended = steady_nanos();
  for (const auto& log : active_logs) log->end(number, ended);
  finished_items = number;
}

void Worker::State::park() {
  std::unique_lock<std::mutex> lock(mutex);
  parked = true;
  changed.notify_all();
  changed.wait(lock, [&] { return paused == 0; });
  parked = false;
}

// Makes all queued commands the next batch; polls first, then sleeps. Returns false if the thread must end.
bool Worker::State::next_batch() {
  working = false;
  active_logs.clear();
  busy.end(steady_nanos());
  spin_until(kSpinNanos, [&] { return has_work.load(std::memory_order_acquire); });
  auto lock = spin_lock(mutex);
  sleeping = true;
  changed.wait(lock, [&] { return closed || !inbox.empty(); });
  sleeping = false;
  if (discarded || inbox.empty()) return false;
  batch.swap(spent);
  batch.swap(inbox);
  next = 0;
  has_work = false;
  working = true;
  for (const auto& log : logs) {
    if (auto active = log.lock()) active_logs.push_back(std::move(active));
  }
  if (active_logs.size() < logs.size()) logs.assign(active_logs.begin(), active_logs.end());
  lock.unlock();
  busy.begin(steady_nanos());
  if (spent.capacity() > kMaxSpareCapacity) spent = std::vector<Command>();
  spent.clear();
  return true;
}

// Returns true if all queued work is done, even if the thread has not finished its batch yet.
bool Worker::State::is_done() const {
  return ends_in_signal ? timeline->reached() == timeline->signalled() : !working && inbox.empty();
}

// Guarded memory is opened before it is touched, and closed before a tick announces that the work is done and during a
// wait.
void Worker::State::operator()(const Copy& c) {
  if (guarded) guard_scope.open(c.dst, c.nbytes), guard_scope.open(c.src, c.nbytes);
  std::memmove(c.dst, c.src, c.nbytes);  // as fast as memcpy, and may overlap
}

void Worker::State::operator()(const Fill& c) {
  if (guarded) guard_scope.open(c.dst, c.nbytes);
  std::memset(c.dst, c.byte, c.nbytes);
}

void Worker::State::operator()(const DrawCommand& c) {
  if (guarded) {
    const Span output = written_span(c.packed.get()), input = read_span(c.packed.get());
    guard_scope.open(output.address, output.nbytes);
    guard_scope.open(input.address, input.nbytes);
  }
  if (const int code = run_packed_draw(c.packed.get())) record_failure(Failure::Code, code);
}

void Worker::State::operator()(const StridedCopyCommand& c) {
  if (guarded) {
    const Span output = copy_written_span(c.packed.get()), input = copy_read_span(c.packed.get());
    guard_scope.open(output.address, output.nbytes);
    guard_scope.open(input.address, input.nbytes);
  }
  if (const int code = run_strided_copy(c.packed.get())) record_failure(Failure::Code, code);
}

void Worker::State::operator()(const Program& c) {
  if (guarded) guard_scope.open_all();
  if (const int code = run_program(c.bytes.get(), c.nbytes, discarded)) record_failure(Failure::Code, code);
}

void Worker::State::operator()(const Run& c) {
  if (guarded) guard_scope.open_all();
  if (const int code = c.function(c.argument)) record_failure(c.host_call ? Failure::HostCall : Failure::Code, code);
  if (c.host_call) --calls;
}

void Worker::State::operator()(const Signal& c) {
  if (guarded) guard_scope.end();
  if (c.mark) {
    c.mark->nanoseconds = steady_nanos();
  }
  timeline->advance();
}

void Worker::State::operator()(const WaitFor& c) {
  const auto set_waiting_on = [&](std::shared_ptr<Timeline> on) {
    std::lock_guard<std::mutex> lock(mutex);
    waiting_on = std::move(on);
  };
  if (c.timeline->reached() >= c.tick) return;
  if (guarded) guard_scope.end();
  set_waiting_on(c.timeline);  // so that discard() can end the wait
  set_suspended(true);
  const Wait result = c.timeline->wait(c.tick, kForever, &discarded);
  set_suspended(false);
  set_waiting_on(nullptr);
  if (result == Wait::Never && !discarded) record_failure(Failure::LostQueue, 0);
}

void Worker::State::record_failure(Failure::Cause cause, int code) {
  std::lock_guard<std::mutex> lock(mutex);
  if (failure.cause == Failure::None) failure = {cause, code, timeline->reached() + 1};
  failed = true;
}

// Drops all work that the thread has not started; the thread ends after its current command. Returns the arguments of
// the dropped host-language calls. Called once.
std::vector<void*> Worker::State::discard(std::unique_lock<std::mutex>& lock) {
  discarded = true;
  changed.notify_all();
  const size_t first = next.exchange(kPastEnd);
  const std::shared_ptr<Timeline> other = waiting_on;
  lock.unlock();
  timeline->end();
  if (other) other->wake_waiters();
  std::vector<void*> dropped;
  const auto drop = [&](const Command& command) {
    const Run* run = std::get_if<Run>(&command);
    if (!run || !run->host_call) return;
    --calls;
    dropped.push_back(run->argument);
  };
  for (size_t i = first; i < batch.size(); ++i) drop(batch[i]);
  for (const Command& command : inbox) drop(command);
  lock.lock();
  return dropped;
}

void set_suspended(bool on) noexcept {
  if (!current_suspended) return;
  on ? current_busy->end(steady_nanos()) : current_busy->begin(steady_nanos());
  *current_suspended = on;
}

// ---- The callers' side

Worker::Worker(uint64_t handle, int priority, int memory_checks)
    : counted_(memory_checks & kCounted),
      timeline_(std::make_shared<Timeline>()),
      state_(std::make_shared<State>(timeline_, handle, std::clamp(priority, -5, 5), memory_checks & kGuarded)) {}

Worker::~Worker() {
  if (!alive()) {
    new std::shared_ptr<State>(std::move(state_));  // leaked, as in continue_in_child()
    return;
  }
  std::thread thread;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = state_->has_work = true;
    thread = std::move(state_->thread);
    state_->changed.notify_all();
  }
  if (thread.joinable()) thread.detach();
}

void Worker::continue_in_child() {
  const State& old = *state_;
  auto timeline = std::make_shared<Timeline>(timeline_->signalled());
  auto state = std::make_shared<State>(timeline, old.handle, old.priority, old.guarded);
  state->closed = old.closed.load();
  state->submitted = state->started_items = state->finished_items = old.submitted.load();
  if (old.finished_items < old.submitted) {  // pending signals alone are not lost work
    state->failure = {Failure::Code, kLostWork, timeline->reached() + 1};
    state->failed = true;
  }
  state_.swap(state);
  timeline_.swap(timeline);
  new std::shared_ptr<State>(std::move(state));  // leaked: its locks may be held by threads of the parent
}

Worker::State& Worker::own_state() const {
  if (!alive()) state_->throw_error("belongs to the process this one was forked from");
  return *state_;
}

Worker::State& Worker::state_for_write(const void* dst, size_t nbytes) const {
  State& state = own_state();
  if (counted_ && !state.closed && touched::any_untouched(reinterpret_cast<uintptr_t>(dst), nbytes))
    throw UncountedMemory();
  return state;
}

void Worker::copy(void* dst, const void* src, size_t nbytes) {
  if (nbytes && (!dst || !src)) state_->throw_error("cannot copy from or to address 0");
  state_for_write(dst, nbytes).push(Copy{dst, src, nbytes});
}

void Worker::fill(void* dst, int byte, size_t nbytes) {
  if (nbytes && !dst) state_->throw_error("cannot fill address 0");
  state_for_write(dst, nbytes).push(Fill{dst, byte, nbytes});
}

void Worker::draw(const void* packed, size_t nbytes) {
  if (!is_valid_draw(packed, nbytes)) throw std::invalid_argument("invalid packed draw");
  DrawCommand command{std::make_unique<char[]>(nbytes)};
  std::memcpy(command.packed.get(), packed, nbytes);
  const Span span = written_span(packed);
  state_for_write(reinterpret_cast<void*>(span.address), span.nbytes).push(std::move(command));
}

void Worker::copy_strided(const void* packed, size_t nbytes) {
  if (!is_valid_strided_copy(packed, nbytes)) throw std::invalid_argument("invalid strided copy");
  StridedCopyCommand command{std::make_unique<char[]>(nbytes)};
  std::memcpy(command.packed.get(), packed, nbytes);
  State& state = own_state();
  const auto is_untouched = [](Span span) { return touched::any_untouched(span.address, span.nbytes); };
  if (counted_ && !state.closed && any_written_span(packed, is_untouched)) throw UncountedMemory();
  state.push(std::move(command));
}

void Worker::program(const void* bytes, size_t nbytes) {
  if (!is_valid_program(bytes, nbytes)) throw std::invalid_argument("invalid program");
  Program program{std::unique_ptr<char[]>(new char[nbytes]), nbytes};
  std::memcpy(program.bytes.get(), bytes, nbytes);
  own_state().push(std::move(program));
}

void Worker::run(Function function, void* argument, bool host_call) {
  if (!function) state_->throw_error("cannot call address 0");
  own_state().push(Run{function, argument, host_call});
}

uint64_t Worker::signal() { return own_state().push(Signal{}); }

std::shared_ptr<Mark> Worker::mark() {
  auto mark = std::make_shared<Mark>();
  mark->tick = own_state().push(Signal{mark});
  return mark;
}

uint64_t Worker::submitted() const noexcept { return state_->submitted.load(std::memory_order_relaxed); }

std::shared_ptr<Log> Worker::log(size_t capacity) {
  State& state = own_state();
  auto lock = spin_lock(state.mutex);
  auto log = std::make_shared<Log>(capacity);
  const auto expired = [](const std::weak_ptr<Log>& each) { return each.expired(); };
  state.logs.erase(std::remove_if(state.logs.begin(), state.logs.end(), expired), state.logs.end());
  state.logs.push_back(log);
  return log;
}

bool Worker::wait_for(const std::shared_ptr<Timeline>& other, uint64_t tick) {
  State& state = own_state();
  if (state.closed) state.throw_error("was closed");
  if (tick > other->signalled()) return false;
  if (other == timeline_ || other->reached() >= tick) return true;
  return !other->ended() && state.push(WaitFor{other, tick});
}

bool Worker::pause(int64_t timeout_ns) {
  if (!alive()) return true;
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  ++state.paused;
  if (current_state == &state) return true;
  const auto is_paused = [&] { return state.parked || state.suspended || !state.working || state.finished; };
  const int64_t end = steady_nanos() + timeout_ns;
  while (!wait_until(state.changed, lock, kSpinNanos, is_paused)) {  // not every one of these states notifies
    if (steady_nanos() >= end) return false;
  }
  return true;
}

void Worker::resume() {
  if (!alive()) return;
  std::lock_guard<std::mutex> lock(state_->mutex);
  --state_->paused;
  state_->changed.notify_all();
}

bool Worker::idle() const {
  if (!alive()) return true;
  auto lock = spin_lock(state_->mutex);
  return state_->is_done();
}

std::vector<int64_t> Worker::busy() const {
  return alive() ? state_->busy.read(steady_nanos()) : std::vector<int64_t>();
}

bool Worker::calls_pending() const noexcept { return state_->calls > 0; }

bool Worker::reached_soon(uint64_t tick) const noexcept {
  return reached() >= tick || (!calls_pending() && timeline_->spin(tick, kSpinNanos));
}

Wait Worker::wait(uint64_t tick, int64_t timeout_ns) {
  if (current_state == state_.get()) return reached() >= tick ? Wait::Reached : Wait::Never;
  return timeline_->wait(tick, timeout_ns);
}

bool Worker::failed() const noexcept { return state_->failed && alive(); }

Failure Worker::take_failure() {
  if (!failed()) return {};
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->failed = false;
  return std::exchange(state_->failure, {});
}

bool Worker::closed() const noexcept { return state_->closed; }

Wait Worker::finish(int64_t timeout_ns) {
  if (!alive()) return Wait::Never;
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  state.closed = state.has_work = true;
  state.changed.notify_all();
  if (current_state == &state) return Wait::Never;
  const auto over = [&] { return state.finished || state.discarded || !state.started; };
  if (!wait_until(state.changed, lock, timeout_ns, over) && !state.is_done()) return Wait::TimedOut;
  if (state.discarded) return Wait::Never;
  std::thread thread = std::move(state.thread);
  lock.unlock();
  if (thread.joinable()) thread.join();
  return Wait::Reached;
}

bool Worker::close(int64_t timeout_ns, std::vector<void*>* dropped) {
  const Wait outcome = finish(timeout_ns);
  if (outcome != Wait::TimedOut) return outcome == Wait::Reached;
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (state_->is_done()) {
    lock.unlock();
    return finish(kForever) == Wait::Reached;  // the work is done: the thread is about to end
  }
  if (state_->discarded) return false;  // another thread's close() was first
  std::vector<void*> arguments = state_->discard(lock);
  if (dropped) *dropped = std::move(arguments);
  if (state_->thread.joinable()) state_->thread.detach();
  return false;
}

}  // namespace forebay
