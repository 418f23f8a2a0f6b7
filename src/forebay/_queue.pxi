# In-order queues on native threads. Submitting work raises ValueError if the queue rejects it. Part of _core.pyx.


import traceback


@cython.final
cdef class Mark:
    cdef shared_ptr[NativeMark] native

    @property
    def tick(self): return 0 if self.native.get() is NULL else self.native.get().tick  # null: made by the type
    @property
    def nanoseconds(self): return 0 if self.native.get() is NULL else self.native.get().nanoseconds

    def elapsed_ms(self, Mark end not None):
        if self.native.get() is NULL or end.native.get() is NULL:
            return None
        cdef int64_t since = self.native.get().nanoseconds, until = end.native.get().nanoseconds
        return (until - since) / 1e6 if since and until else None


cdef class Queue:
    cdef unique_ptr[Worker] worker
    cdef readonly uint64_t handle
    cdef object error  # the first exception of a callable
    cdef object __weakref__

    def __cinit__(self, uint64_t handle=0, int priority=0, int watch=0):
        self.worker.reset(new Worker(handle, priority, watch))
        self.handle = handle

    def copy(self, uintptr_t dst, uintptr_t src, size_t nbytes):
        self.worker.get().copy(<void*>dst, <const void*>src, nbytes)

    def fill(self, uintptr_t dst, int byte, size_t nbytes):
        self.worker.get().fill(<void*>dst, byte, nbytes)

    def draw_packed(self, bytes packed not None): self.worker.get().draw(<char*>packed, len(packed))
    def copy_packed(self, bytes packed not None): self.worker.get().copy_strided(<char*>packed, len(packed))
    def run_program(self, bytes program not None): self.worker.get().program(<char*>program, len(program))

    def run_program_at(self, bytes program not None, tuple logs not None, Py_ssize_t count):
        for log in logs:
            count -= <Py_ssize_t>log.count
        if count == 0:
            self.worker.get().program(<char*>program, len(program))
        return count == 0

    def call(self, function):
        call = (self, function)
        Py_INCREF(call)  # owned by run_callable, or by close_within if discarded
        try:
            self.worker.get().run(run_callable, <void*>call, True)
        except BaseException:
            Py_DECREF(call)
            raise

    def call_native(self, uintptr_t function, uintptr_t argument):
        self.worker.get().run(<Function>function, <void*>argument, False)

    def mark(self):
        cdef Mark mark = Mark.__new__(Mark)
        mark.native = self.worker.get().mark()
        return mark

    def wait_within(self, uint64_t tick, int64_t nanoseconds):
        cdef Wait outcome
        # Spin first: a thread that releases the GIL reacquires it only after 5 ms if another thread computes.
        if self.worker.get().reached_soon(tick):
            return True
        with nogil:
            outcome = self.worker.get().wait(tick, nanoseconds)
        if outcome == Wait.Never:
            raise ValueError(f"queue {self.handle} never reaches tick {tick}")
        return outcome == Wait.Reached

    def wait_for(self, Queue other not None, uint64_t tick):
        if not self.worker.get().wait_for(other.worker.get().timeline(), tick):
            raise ValueError(f"queue {other.handle} never reaches tick {tick}")

    def settled(self, uint64_t tick):
        return self.worker.get().reached() >= tick and not self.worker.get().failed()

    def take_failure(self):
        if not self.worker.get().failed():
            return None
        cdef Failure failure = self.worker.get().take_failure()
        error, self.error = self.error, None
        return error if failure.cause == HostCall else failure.code

    def finish_within(self, int64_t nanoseconds):
        cdef Wait outcome
        with nogil:
            outcome = self.worker.get().finish(nanoseconds)
        return None if outcome == Wait.Never else outcome == Wait.Reached

    def close_within(self, int64_t nanoseconds):
        cdef bint done
        cdef vector[void*] dropped  # released together: taking the GIL costs 5 ms if another thread computes
        with nogil:
            done = self.worker.get().close(nanoseconds, &dropped)
        for call in dropped:
            Py_DECREF(<object>call)
        return done

    def signal(self): return self.worker.get().signal()
    def reached(self): return self.worker.get().reached()
    def last_work_number(self): return self.worker.get().submitted()
    def idle(self): return self.worker.get().idle()
    def busy(self): return self.worker.get().busy()
    def continue_in_child(self): self.worker.get().continue_in_child()
    def native(self): return <uintptr_t>self.worker.get()
    @property
    def closed(self): return self.worker.get().closed()


def all_settled(queues):
    cdef Queue queue
    for queue in queues:
        if queue is None:
            raise TypeError("queues must be queues, not None")
        if queue.worker.get().failed() or not queue.worker.get().idle():
            return False
    return True


cdef int run_callable(void* argument) noexcept with gil:
    call = <tuple>argument
    cdef Queue queue = call[0]
    try:
        call[1]()
        return 0
    except BaseException as error:
        if queue.error is None:
            queue.error = error
            lines = traceback.format_tb(error.__traceback__)
            error.add_note("raised by the queued function:\n" + "".join(lines).rstrip())
            while error is not None and error.__traceback__ is not None:  # a stored exception keeps no frames
                error.__traceback__ = error.__context__ = None
                error = error.__cause__
        return 1
    finally:
        Py_DECREF(call)
