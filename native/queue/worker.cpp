// A queue as its thread sees it, and as its callers do: two halves of one thing, which makes the lines.
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

#include "queue/busy_meter.hpp"
#include "queue/command.hpp"
#include "random/draw.hpp"
#include "os/access_guard.hpp"
#include "queue/program.hpp"
#include "os/touched_pages.hpp"

namespace forebay {
namespace {

// A queue's mutex is held for a few instructions only: to sleep for it would cost a hundred times more than to retry.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  for (int i = 0; i < 100 && !lock; ++i, relax()) lock.try_lock();
  if (!lock) lock.lock();
  return lock;
}

}  // namespace

// ---- The queue, as its thread sees it

struct Worker::State : std::enable_shared_from_this<Worker::State> {
  static constexpr size_t kTaken = std::numeric_limits<size_t>::max() / 2;  // beyond the end of any batch
  static constexpr size_t kKept = 4096;  // commands whose room is kept for the next ones

  State(std::shared_ptr<Timeline> line, uint64_t name, int nice, bool in_guard)
      : timeline(std::move(line)), handle(name), priority(nice), guarded(in_guard) {}

  [[noreturn]] void refuse(const char* why) const;
  uint64_t push(Command&& command);
  static void work(std::shared_ptr<State> self);
  void step(Command& command);
  void park();
  bool refill();
  bool done() const;
  void fail(Failure::Cause cause, int code);
  std::vector<void*> discard(std::unique_lock<std::mutex>& lock);

  void operator()(const Copy& c);
  void operator()(const Fill& c);
  void operator()(const Drawing& c);
  void operator()(const Program& c);
  void operator()(const Run& c);
  void operator()(const Signal& c);
  void operator()(const WaitFor& c);

  const std::shared_ptr<Timeline> timeline;
  const uint64_t handle;
  const int priority;
  const bool guarded;
  guard::Stay stay;  // its thread's own
  std::atomic<bool> closed{false}, discarded{false}, failed{false};
  std::atomic<bool> news{false};   // something to look at: what an idle thread polls
  std::atomic<int> calls{0};       // host-language calls, queued or running
  std::atomic<int> paused{0};      // by so many; raised under the mutex
  std::atomic<bool> aside{false};  // what it does waits, and touches no memory

  std::mutex mutex;  // of what stands here; the batch taken is the thread's to read, and `spent` is its own
  std::condition_variable changed;
  std::atomic<uint64_t> given{0};
  bool started = false, sleeping = false, finished = false, ends_in_signal = false, parked = false;
  std::thread thread;
  std::shared_ptr<Timeline> waiting_on;
  Failure failure;
  std::vector<Command> inbox, batch, spent;  // they rotate, so that a steady state allocates nothing
  BusyMeter busy;
  std::vector<std::weak_ptr<Log>> logs;

  alignas(kCacheLine) std::atomic<size_t> next{0};  // in the batch; stepping over a command owns it: thread or close()
  std::atomic<bool> working{false};                 // a batch has been taken and is not finished
  uint64_t taken = 0;                               // its thread's own, as what follows: pieces of work
  std::vector<std::shared_ptr<Log>> logging;        // those that somebody has, during a batch
};

namespace {
thread_local const void* here = nullptr;  // the state of the queue whose thread this is
thread_local std::atomic<bool>* here_aside = nullptr;
thread_local BusyMeter* here_busy = nullptr;
}  // namespace

void Worker::State::refuse(const char* why) const {
  throw std::invalid_argument("queue " + std::to_string(handle) + " " + why);
}

// Returns the tick that will be the first one behind the command, or is the command.
uint64_t Worker::State::push(Command&& command) {
  const bool is_signal = std::holds_alternative<Signal>(command);
  const Run* run = std::get_if<Run>(&command);
  const bool host_call = run && run->host_call;
  auto lock = lock_soon(mutex);
  if (closed) refuse("was closed");
  if (!started) thread = std::thread(work, shared_from_this());
  started = true;
  inbox.push_back(std::move(command));
  if (!is_signal) given.store(given.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (host_call) ++calls;
  const uint64_t tick = timeline->promised() + 1;
  if (is_signal) timeline->promise();
  ends_in_signal = is_signal;
  if (!news.load(std::memory_order_relaxed)) news.store(true, std::memory_order_release);
  const bool wake = sleeping;
  lock.unlock();
  if (wake) changed.notify_one();
  return tick;
}

void Worker::State::work(std::shared_ptr<State> self) {
  here = self.get();
  here_aside = &self->aside;
  here_busy = &self->busy;
#ifdef __linux__
  pthread_setname_np(pthread_self(), "forebay");
  if (self->priority) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + self->priority);  // 0: this thread
#endif
  while (self->refill()) {
    for (size_t i; (i = self->next.fetch_add(1)) < self->batch.size();) {
      if (self->paused) self->park();  // looked at after `next` has moved, as pause() looks after it has said so
      self->step(self->batch[i]);
      if (self->timeline->forked()) return;  // a call forked, and this is the child: the rest is the parent's
    }
    if (self->guarded) self->stay.end();
  }
  std::lock_guard<std::mutex> lock(self->mutex);
  self->finished = true;
  self->changed.notify_all();
}

void Worker::State::step(Command& command) {
  const uint64_t number = std::holds_alternative<Signal>(command) ? 0 : ++taken;
  if (number == 0 || logging.empty()) return std::visit(*this, command);
  const int64_t began = steady_nanos();
  for (const auto& log : logging) log->begin(number, began);
  std::visit(*this, command);
  const int64_t ended = steady_nanos();
  for (const auto& log : logging) log->end(number, ended);
}

void Worker::State::park() {
  std::unique_lock<std::mutex> lock(mutex);
  parked = true;
  changed.notify_all();
  changed.wait(lock, [&] { return paused == 0; });
  parked = false;
}

// Takes what has been queued as the next batch; polls first, then sleeps. False when the thread is to end.
bool Worker::State::refill() {
  working = false;
  logging.clear();
  busy.end(steady_nanos());
  spin_until(kSpinNanos, [&] { return news.load(std::memory_order_acquire); });
  auto lock = lock_soon(mutex);
  sleeping = true;
  changed.wait(lock, [&] { return closed || !inbox.empty(); });
  sleeping = false;
  if (discarded || inbox.empty()) return false;
  batch.swap(spent);
  batch.swap(inbox);
  next = 0;
  news = false;
  working = true;
  for (const auto& log : logs) {
    if (auto held = log.lock()) logging.push_back(std::move(held));
  }
  if (logging.size() < logs.size()) logs.assign(logging.begin(), logging.end());
  lock.unlock();
  busy.begin(steady_nanos());
  if (spent.capacity() > kKept) spent = std::vector<Command>();
  spent.clear();
  return true;
}

// All that was queued is done, even where the thread has not come round to saying so.
bool Worker::State::done() const {
  return ends_in_signal ? timeline->reached() == timeline->promised() : !working && inbox.empty();
}

// Guarded memory is opened before it is touched. It is closed before anybody can know that work is done, and while we
// wait.
void Worker::State::operator()(const Copy& c) {
  if (guarded) stay.at(c.dst, c.nbytes), stay.at(c.src, c.nbytes);
  std::memmove(c.dst, c.src, c.nbytes);  // as fast as memcpy, and may overlap
}

void Worker::State::operator()(const Fill& c) {
  if (guarded) stay.at(c.dst, c.nbytes);
  std::memset(c.dst, c.byte, c.nbytes);
}

void Worker::State::operator()(const Drawing& c) {
  if (guarded) {
    const Span to = written(c.packed.get()), from = consulted(c.packed.get());
    stay.at(to.address, to.nbytes);
    stay.at(from.address, from.nbytes);
  }
  if (const int code = draw_packed(c.packed.get())) fail(Failure::Code, code);
}

void Worker::State::operator()(const Program& c) {
  if (guarded) stay.anywhere();
  if (const int code = run_program(c.bytes.get(), c.nbytes, discarded)) fail(Failure::Code, code);
}

void Worker::State::operator()(const Run& c) {
  if (guarded) stay.anywhere();
  if (const int code = c.function(c.argument)) fail(c.host_call ? Failure::HostCall : Failure::Code, code);
  if (c.host_call) --calls;
}

void Worker::State::operator()(const Signal& c) {
  if (guarded) stay.end();
  if (c.mark) {
    c.mark->nanoseconds = steady_nanos();
  }
  timeline->advance();
}

void Worker::State::operator()(const WaitFor& c) {
  const auto waiting = [&](std::shared_ptr<Timeline> on) {
    std::lock_guard<std::mutex> lock(mutex);
    waiting_on = std::move(on);
  };
  if (c.timeline->reached() >= c.tick) return;
  if (guarded) stay.end();
  waiting(c.timeline);  // so that discard() can call us back
  stand_aside(true);
  const Wait result = c.timeline->wait(c.tick, kForever, &discarded);
  stand_aside(false);
  waiting(nullptr);
  if (result == Wait::Never && !discarded) fail(Failure::LostQueue, 0);
}

void Worker::State::fail(Failure::Cause cause, int code) {
  std::lock_guard<std::mutex> lock(mutex);
  if (failure.cause == Failure::None) failure = {cause, code, timeline->reached() + 1};
  failed = true;
}

// Called once. What the thread has not begun is dropped here; it touches no more of it, and ends by itself when it can.
// Returns the arguments of the host-language calls among it.
std::vector<void*> Worker::State::discard(std::unique_lock<std::mutex>& lock) {
  discarded = true;
  changed.notify_all();
  const size_t first = next.exchange(kTaken);
  const std::shared_ptr<Timeline> other = waiting_on;
  lock.unlock();
  timeline->end();
  if (other) other->nudge();
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

void stand_aside(bool on) noexcept {
  if (!here_aside) return;
  on ? here_busy->end(steady_nanos()) : here_busy->begin(steady_nanos());
  *here_aside = on;
}

// ---- The queue, as its callers see it

Worker::Worker(uint64_t handle, int priority, int watch)
    : counted_(watch & kCounted),
      timeline_(std::make_shared<Timeline>()),
      state_(std::make_shared<State>(timeline_, handle, std::clamp(priority, -5, 5), watch & kGuarded)) {}

Worker::~Worker() {
  if (!alive()) {
    new std::shared_ptr<State>(std::move(state_));  // kept for ever: its locks may be held by threads that are no more
    return;
  }
  std::thread thread;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = state_->news = true;
    thread = std::move(state_->thread);
    state_->changed.notify_all();
  }
  if (thread.joinable()) thread.detach();
}

Worker::State& Worker::open() const {
  if (!alive()) state_->refuse("belongs to the process this one was forked from");
  return *state_;
}

Worker::State& Worker::open_to_write(const void* dst, size_t nbytes) const {
  State& state = open();
  if (counted_ && !state.closed && touched::any_fresh(reinterpret_cast<uintptr_t>(dst), nbytes)) throw Uncounted();
  return state;
}

void Worker::copy(void* dst, const void* src, size_t nbytes) {
  open_to_write(dst, nbytes).push(Copy{dst, src, nbytes});
}

void Worker::fill(void* dst, int byte, size_t nbytes) { open_to_write(dst, nbytes).push(Fill{dst, byte, nbytes}); }

void Worker::draw(const void* packed, size_t nbytes) {
  if (!readable(packed, nbytes)) throw std::invalid_argument("these bytes say not what to draw");
  Drawing drawing{std::make_unique<char[]>(nbytes)};
  std::memcpy(drawing.packed.get(), packed, nbytes);
  const Span span = written(packed);
  open_to_write(reinterpret_cast<void*>(span.address), span.nbytes).push(std::move(drawing));
}

void Worker::program(const void* bytes, size_t nbytes) {
  if (!readable_program(bytes, nbytes)) throw std::invalid_argument("these bytes are no program");
  Program program{std::unique_ptr<char[]>(new char[nbytes]), nbytes};
  std::memcpy(program.bytes.get(), bytes, nbytes);
  open().push(std::move(program));
}

void Worker::run(Function function, void* argument, bool host_call) { open().push(Run{function, argument, host_call}); }

uint64_t Worker::signal() { return open().push(Signal{}); }

std::shared_ptr<Mark> Worker::mark() {
  auto mark = std::make_shared<Mark>();
  mark->tick = open().push(Signal{mark});
  return mark;
}

uint64_t Worker::given() const noexcept { return state_->given.load(std::memory_order_relaxed); }

std::shared_ptr<Log> Worker::log(size_t most) {
  State& state = open();
  auto lock = lock_soon(state.mutex);
  auto log = std::make_shared<Log>(most);
  const auto gone = [](const std::weak_ptr<Log>& each) { return each.expired(); };
  state.logs.erase(std::remove_if(state.logs.begin(), state.logs.end(), gone), state.logs.end());
  state.logs.push_back(log);
  return log;
}

bool Worker::wait_for(const std::shared_ptr<Timeline>& other, uint64_t tick) {
  State& state = open();
  if (state.closed) state.refuse("was closed");
  if (tick > other->promised()) return false;
  if (other == timeline_ || other->reached() >= tick) return true;
  return !other->ended() && state.push(WaitFor{other, tick});
}

bool Worker::pause(int64_t timeout_ns) {
  if (!alive()) return true;
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  ++state.paused;
  if (here == &state) return true;
  const auto at_rest = [&] { return state.parked || state.aside || !state.working || state.finished; };
  const int64_t end = steady_nanos() + timeout_ns;
  while (!wait_until(state.changed, lock, kSpinNanos, at_rest)) {  // only the first of these wakes us
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
  auto lock = lock_soon(state_->mutex);
  return state_->done();
}

std::vector<int64_t> Worker::busy() const {
  return alive() ? state_->busy.read(steady_nanos()) : std::vector<int64_t>();
}

bool Worker::calls_pending() const noexcept { return state_->calls > 0; }

bool Worker::soon(uint64_t tick) const noexcept {
  return reached() >= tick || (!calls_pending() && timeline_->spin(tick, kSpinNanos));
}

Wait Worker::wait(uint64_t tick, int64_t timeout_ns) {
  if (here == state_.get()) return reached() >= tick ? Wait::Reached : Wait::Never;
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
  state.closed = state.news = true;
  state.changed.notify_all();
  if (here == &state) return Wait::Never;
  const auto over = [&] { return state.finished || state.discarded || !state.started; };
  if (!wait_until(state.changed, lock, timeout_ns, over) && !state.done()) return Wait::TimedOut;
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
  if (state_->done()) {
    lock.unlock();
    return finish(kForever) == Wait::Reached;  // it was done after all: its thread is on its way out
  }
  if (state_->discarded) return false;  // another thread's close() was quicker
  std::vector<void*> arguments = state_->discard(lock);
  if (dropped) *dropped = std::move(arguments);
  if (state_->thread.joinable()) state_->thread.detach();
  return false;
}

}  // namespace forebay
