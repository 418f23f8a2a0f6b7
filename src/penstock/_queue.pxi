# In-order queues on native threads. Part of _core.pyx.

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from "worker.hpp" namespace "penstock" nogil:
    ctypedef int (*Function)(void*) noexcept
    ctypedef void (*Drop)(void*) noexcept
    const int64_t kForever
    const int64_t kSpinNanos

    enum class Wait(int):
        Reached
        TimedOut
        Never

    cppclass Timeline:
        uint64_t promised()

    cppclass NativeMark "penstock::Mark":
        uint64_t tick
        int64_t nanoseconds

    enum Cause "penstock::Failure::Cause":
        none "penstock::Failure::None"
        code "penstock::Failure::Code"
        host_call "penstock::Failure::HostCall"

    cppclass Failure:
        Cause cause
        int code

    cppclass Worker:
        Worker(int priority) except +
        cbool copy(void* dst, const void* src, size_t nbytes) except +
        cbool fill(void* dst, int byte, size_t nbytes) except +
        cbool run(Function function, void* argument, Drop drop, cbool host_call) except +
        uint64_t signal() except +
        shared_ptr[NativeMark] mark() except +
        cbool wait_for(const shared_ptr[Timeline]& other, uint64_t tick) except +
        const shared_ptr[Timeline]& timeline()
        uint64_t reached()
        cbool idle() except +
        cbool calls_pending()
        cbool spin(uint64_t tick, int64_t nanos)
        Wait wait(uint64_t tick, int64_t timeout_ns) except +
        cbool failed()
        Failure take_failure() except +
        Wait finish(int64_t timeout_ns) except +
        cbool close(int64_t timeout_ns) except +
        cbool closed()
        void abandon()
        cbool alive()

cdef extern from *:
    """
    static std::vector<void*>& penstock_dropped() {
      thread_local std::vector<void*> calls;
      return calls;
    }
    """
    vector[void*]& dropped "penstock_dropped"() nogil

cdef enum:
    SLICE_NS = 50_000_000  # how long a wait goes on before it looks for Ctrl-C


cdef int64_t in_nanoseconds(timeout) except? -2:
    if timeout is None:
        return kForever
    return <int64_t>(min(max(float(timeout), 0.0), 1e9) * 1e9)  # 30 years are as good as for ever


@cython.final
cdef class Mark:
    cdef shared_ptr[NativeMark] native

    @property
    def tick(self): return self.native.get().tick

    @property
    def nanoseconds(self): return self.native.get().nanoseconds


cdef class Queue:
    cdef unique_ptr[Worker] worker
    cdef readonly uint64_t handle
    cdef object error  # the first exception of a callable
    cdef object __weakref__

    def __cinit__(self, uint64_t handle=0, int priority=0):
        self.worker.reset(new Worker(priority))
        self.handle = handle

    cdef accepted(self, bint done):
        if not done:
            state = "was closed" if self.worker.get().alive() else "belongs to the process this one was forked from"
            raise ValueError(f"queue {self.handle} {state}")

    def copy(self, uintptr_t dst, uintptr_t src, size_t nbytes):
        self.accepted(self.worker.get().copy(<void*>dst, <const void*>src, nbytes))

    def fill(self, uintptr_t dst, int byte, size_t nbytes):
        self.accepted(self.worker.get().fill(<void*>dst, byte, nbytes))

    def call(self, function):
        if not callable(function):
            raise TypeError(f"expected a callable, not {type(function).__name__}")
        call = (self, function)
        Py_INCREF(call)  # for run_callable or drop_callable
        cdef bint taken = False
        try:
            taken = self.worker.get().run(run_callable, <void*>call, drop_callable, True)
        finally:
            if not taken:
                Py_DECREF(call)
        self.accepted(taken)

    def call_native(self, uintptr_t function, uintptr_t argument):
        if function == 0:
            raise ValueError("expected the address of a function, not 0")
        self.accepted(self.worker.get().run(<Function>function, <void*>argument, NULL, False))

    def signal(self):
        cdef uint64_t tick = self.worker.get().signal()
        self.accepted(tick != 0)
        return tick

    def mark(self):
        cdef Mark mark = Mark.__new__(Mark)
        mark.native = self.worker.get().mark()
        self.accepted(mark.native.get() is not NULL)
        return mark

    def reached(self): return self.worker.get().reached()

    def idle(self): return self.worker.get().idle()

    def wait(self, uint64_t tick, timeout=None):
        """Whether it was reached in time; ValueError for a tick that never will be. Sees Ctrl-C."""
        cdef Worker* worker = self.worker.get()
        cdef int64_t left = in_nanoseconds(timeout)
        cdef int64_t limit
        cdef Wait outcome
        # A waiter that lets the interpreter go gets it back only after 5 ms when another thread computes: first spin.
        if worker.reached() >= tick or (not worker.calls_pending() and worker.spin(tick, kSpinNanos)):
            return True
        while True:
            limit = SLICE_NS if left < 0 else min(left, <int64_t>SLICE_NS)
            with nogil:
                outcome = worker.wait(tick, limit)
            if outcome == Wait.Reached:
                return True
            if outcome == Wait.Never:
                raise ValueError(f"queue {self.handle} never reaches tick {tick}")
            PyErr_CheckSignals()
            if left >= 0:
                left -= limit
                if left <= 0:
                    return False

    def wait_for(self, Queue other not None, uint64_t tick):
        if not self.worker.get().wait_for(other.worker.get().timeline(), tick):
            self.accepted(self.worker.get().alive() and not self.worker.get().closed())
            raise ValueError(f"queue {other.handle} never reaches tick {tick}")

    def take_failure(self):
        if not self.worker.get().failed():
            return None
        cdef Failure failure = self.worker.get().take_failure()
        error, self.error = self.error, None
        if failure.cause == host_call:
            return error
        if failure.cause == code:
            return failure.code
        return RuntimeError("it waited for another queue, which was closed before it got there")

    def close(self, timeout=None):
        cdef int64_t limit = in_nanoseconds(timeout)
        cdef Wait outcome
        cdef bint done
        if limit >= 0:
            with nogil:
                done = self.worker.get().close(limit)
            forget_dropped()
            return done
        while True:  # in slices, between which Ctrl-C is seen
            with nogil:
                outcome = self.worker.get().finish(SLICE_NS)
            if outcome != Wait.TimedOut:
                return outcome == Wait.Reached
            PyErr_CheckSignals()

    def abandon(self): self.worker.get().abandon()

    @property
    def closed(self): return self.worker.get().closed()


cdef int run_callable(void* argument) noexcept with gil:
    call = <tuple>argument
    cdef Queue queue = call[0]
    try:
        call[1]()
        return 0
    except BaseException as error:
        if queue.error is None:
            queue.error = error
        return 1
    finally:
        Py_DECREF(call)


cdef void drop_callable(void* argument) noexcept nogil:
    dropped().push_back(argument)  # by whoever closes the queue, who has let the interpreter go


cdef forget_dropped():
    """In one go: to take the interpreter for each would cost 5 ms a call beside a thread that computes."""
    cdef vector[void*] calls
    calls.swap(dropped())
    for call in calls:
        Py_DECREF(<object>call)
