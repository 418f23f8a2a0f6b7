# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""Streams of NVIDIA's driver, their ticks and their host functions; documented in _stream.pyi.

Nothing holds the GIL during a call of the driver, which blocks while a stream has no room for more work.
"""

import traceback

cimport cython
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.vector cimport vector
from posix.unistd cimport getpid

from forebay.vendor import address_of, byte_of, index_of, size_of
from forebay.backends.nvidia.calls import error_of
from forebay.errors import DeviceError, WrongState, without_frames

cdef extern from "<atomic>" namespace "std" nogil:
    cdef cppclass atomic_int "std::atomic<int>":
        atomic_int()
        int load()
        int exchange(int)

cdef extern from "cuda/work_log.hpp" namespace "forebay::cuda" nogil:
    cdef cppclass Span:
        int64_t begin, end
    cdef cppclass NativeLog "forebay::cuda::WorkLog":
        vector[Span] times(const vector[int64_t]&, int64_t, cpp_bool) except +
    cdef cppclass CuptiFunctions:
        pass
    cdef cppclass Activities:
        @staticmethod
        Activities& get()
        CuptiFunctions functions
        int start()
        void stop()
        void update()

cdef extern from "cuda/stream.hpp" namespace "forebay::cuda" nogil:
    ctypedef void* Handle
    ctypedef int Result
    cdef Result NotReady "forebay::cuda::kNotReady"
    cdef int AllDevices "forebay::cuda::kAllDevices", NoDevice "forebay::cuda::kNoDevice"
    cdef cppclass Functions:
        Result (*ctx_push_current)(Handle)
        Result (*ctx_pop_current)(Handle*)
        Result (*exchange_capture_mode)(int*)
    cdef cppclass Tick:
        int64_t number
        Handle event
    cdef cppclass Launch:
        unsigned grid[3]
        unsigned block[3]
        unsigned shared
    ctypedef int (*Work)(void*) noexcept nogil
    cdef cppclass NativeCall:
        Work function
        void* argument
        shared_ptr[atomic_int] failure
        cpp_bool repeated
    ctypedef void (*Callback)(void*) noexcept nogil
    cdef void run_native_call(void*) noexcept
    cdef Result query_event(const Functions&, Handle)
    cdef void report_to(NativeCall*, const shared_ptr[atomic_int]&)
    cdef cppclass NativeStream "forebay::cuda::Stream":
        void open(const Functions*, Handle, Handle)
        Result copy(uint64_t, uint64_t, size_t)
        Result fill(uint64_t, unsigned char, size_t)
        Result launch(Callback, void*, cpp_bool)
        Result launch_graph(Handle)
        shared_ptr[NativeLog] start_log(int64_t) except +
        int64_t last_work()
        Result launch_kernel(Handle, const Launch&, void**)
        Result memory_device(uint64_t, int*)
        Result elapsed(Handle, Handle, float*)
        Result query()
        Result signal(cpp_bool, Tick*)
        Result reached(int64_t*)
        Result wait(int64_t, int64_t, int64_t*)
        Result make_wait(NativeStream&, int64_t)
        int64_t last()
        void give_back(Handle)
        void close()
        cpp_bool closed()

ALL_DEVICES, NO_DEVICE = AllDevices, NoDevice

# In the order of the members of `Functions`.
FUNCTIONS = (
    "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuEventCreate", "cuEventDestroy", "cuEventRecord",
    "cuEventQuery", "cuEventElapsedTime", "cuStreamWaitEvent", "cuStreamQuery", "cuMemcpyAsync", "cuMemsetD8Async",
    "cuLaunchHostFunc", "cuThreadExchangeStreamCaptureMode", "cuLaunchKernel", "cuPointerGetAttribute",
    "cuGraphLaunch",
)
cdef Functions driver
cdef int RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
cdef set queued_calls = set()  # owned by the driver until they ran; those of graphs are not among them


cdef bint cupti_is_loaded = False


def load(addresses):
    set_functions(<void**>&driver, FUNCTIONS, addresses)


cdef int check_loaded() except -1:
    if driver.ctx_push_current is NULL:
        raise WrongState("NVIDIA's driver is not loaded: open a device first")
    return 0


@cython.final
cdef class Current:
    def __init__(self, context, result):
        cdef uintptr_t handle = context.handle
        self.context, self.result, self.handle = context, result, <Handle>handle

    def __enter__(self):
        self.enter()
        return self.result

    def __exit__(self, *_):
        self.leave()

    cdef int enter(self) except -1:  # no Python code, which may be interrupted, runs while the context is pushed
        cdef Result result
        cdef Handle popped
        check_loaded()
        if self.context.released or <int>self.context.process != getpid():
            self.context.check_usable()
        with nogil:
            result = driver.ctx_push_current(self.handle)
        if result:
            raise error_of(result, "cuCtxPushCurrent", self.context.name)
        self.pushed, self.mode = True, RELAXED
        with nogil:
            result = driver.exchange_capture_mode(&self.mode)
            if result:  # in the mode that the thread had, an allocation would break a capture
                driver.ctx_pop_current(&popped)
        if result:
            self.pushed = False
            raise error_of(result, "cuThreadExchangeStreamCaptureMode", self.context.name)
        self.exchanged = True
        return 0

    cdef void leave(self) noexcept:
        cdef Handle popped
        with nogil:
            if self.exchanged:
                driver.exchange_capture_mode(&self.mode)
            if self.pushed:
                driver.ctx_pop_current(&popped)
        self.pushed = self.exchanged = False


# In the order of the members of `CuptiFunctions`.
CUPTI_FUNCTIONS = (
    "cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityEnableDriverApi",
    "cuptiActivityFlushAll", "cuptiActivityGetNextRecord", "cuptiActivityPushExternalCorrelationId",
    "cuptiActivityPopExternalCorrelationId", "cuptiGetTimestamp",
)


def load_cupti(addresses):
    global cupti_is_loaded
    set_functions(<void**>&Activities.get().functions, CUPTI_FUNCTIONS, addresses)
    cupti_is_loaded = True


@cython.final
cdef class WorkTimes:
    cdef shared_ptr[NativeLog] log
    cdef int64_t most
    cdef int process

    def __init__(self, Stream stream not None, int64_t most):
        cdef int code
        if self.process:
            raise TypeError("a log is initialised once")
        if not cupti_is_loaded:
            raise WrongState(f"{stream.name}: CUPTI is not loaded, which logs the times of work")
        self.most = most
        with nogil:
            code = Activities.get().start()
        if code:
            reason = f"{stream.name}: the times of work cannot be logged, as CUPTI returned {code}"
            message = f"{reason}; another profiler may use it"
            raise DeviceError(message, code=code, call="cuptiActivityEnable", device=stream.name)
        self.process = getpid()
        self.log = stream.native.get().start_log(most)

    def __call__(self, numbers):
        cdef vector[int64_t] wanted = numbers
        cdef vector[Span] found
        with nogil:
            if self.log.get() is not NULL:
                found = self.log.get().times(wanted, self.most, self.process == getpid())
            found.resize(wanted.size())
        return [(each.begin, each.end) for each in found]

    def __dealloc__(self):
        if self.process and self.process == getpid():
            with nogil:
                Activities.get().stop()


@cython.final
cdef class Mark:
    cdef readonly int64_t tick
    cdef Handle event
    cdef int process
    cdef shared_ptr[NativeStream] native

    def __dealloc__(self):
        if self.native.get() is not NULL and self.process == getpid():
            self.native.get().give_back(self.event)


@cython.final
cdef class HostCall:
    cdef readonly object function
    cdef readonly bint repeated
    cdef public Stream stream

    def __init__(self, Stream stream not None, function, bint repeated=False):
        self.stream, self.function, self.repeated = stream, function, repeated


@cython.final
cdef class NativeHostCall:
    cdef NativeCall native

    def __init__(self, Stream stream not None, function, argument):
        cdef uintptr_t address = address_of(function, "function"), value = index_of(argument, "argument")
        if self.native.function is not NULL:  # a graph may run it now
            raise TypeError("a call is initialised once")
        if address == 0:
            raise ValueError("the address of the function is 0")
        self.native.failure, self.native.repeated = stream.native_failure, True
        self.native.function, self.native.argument = <Work>address, <void*>value

    def report_to(self, Stream stream not None):
        report_to(&self.native, stream.native_failure)


cdef class Stream:
    cdef readonly object context
    cdef readonly str name
    cdef readonly uint64_t handle
    cdef readonly bint closed
    cdef int process
    cdef shared_ptr[NativeStream] native
    cdef shared_ptr[atomic_int] native_failure
    cdef object failure  # the first one of a Python function
    cdef list finished  # functions, until a thread that may call the driver drops them
    cdef object __weakref__

    def __cinit__(self):
        self.native = make_shared[NativeStream]()
        self.native_failure = make_shared[atomic_int]()
        self.finished = []
        self.closed = True

    def __init__(self, context, uint64_t handle):
        cdef uintptr_t context_handle = context.handle
        name = context.name
        if self.context is not None:  # other threads may use the handles of the first time
            raise TypeError("a stream is initialised once")
        check_loaded()
        self.name = name
        self.context, self.handle = context, handle
        self.native.get().open(&driver, <Handle>context_handle, <Handle><uintptr_t>handle)
        self.process = getpid()
        self.closed = False

    def copy(self, dst, src, nbytes):
        cdef uint64_t to = address_of(dst, "dst"), origin = address_of(src, "src"), size = size_of(nbytes)
        cdef Result result
        self.check()
        with nogil:
            result = self.native.get().copy(to, origin, size)
        if result:
            raise error_of(result, "cuMemcpyAsync", self.name)

    def fill(self, dst, byte, nbytes):
        cdef uint64_t to = address_of(dst, "dst"), size
        cdef unsigned char value = byte_of(byte)
        cdef Result result
        size = size_of(nbytes)
        self.check()
        with nogil:
            result = self.native.get().fill(to, value, size)
        if result:
            raise error_of(result, "cuMemsetD8Async", self.name)

    def call(self, function):
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        self.queue_call(HostCall(self, function))

    def queue_call(self, HostCall call not None):
        cdef Result result
        cdef cpp_bool repeated = call.repeated
        if call.stream is None:
            raise TypeError("the call has no stream")
        self.check()
        self.finished.clear()
        if not call.repeated:
            queued_calls.add(call)
        with nogil:
            result = self.native.get().launch(run_python_call, <void*>call, repeated)
        if result:
            queued_calls.discard(call)
            raise error_of(result, "cuLaunchHostFunc", self.name)

    def queue_native_call(self, NativeHostCall call not None):
        cdef Result result
        if call.native.function is NULL:
            raise TypeError("the call has no function: it was not initialised")
        self.check()
        with nogil:
            result = self.native.get().launch(run_native_call, &call.native, True)
        if result:
            raise error_of(result, "cuLaunchHostFunc", self.name)

    def call_native(self, function, argument):
        cdef uintptr_t address = address_of(function, "function"), value = index_of(argument, "argument")
        cdef Result result
        if address == 0:
            raise ValueError("the address of the function is 0")
        self.check()
        cdef NativeCall* call = new NativeCall()
        call.function, call.argument = <Work>address, <void*>value
        call.failure, call.repeated = self.native_failure, False
        with nogil:
            result = self.native.get().launch(run_native_call, call, False)
        if result:
            del call
            raise error_of(result, "cuLaunchHostFunc", self.name)

    def launch_kernel(self, function, grid, block, unsigned shared, tuple arguments not None):
        cdef Launch launch
        cdef uintptr_t address = function
        cdef vector[void*] addresses
        cdef Result result
        self.check()
        launch.grid[0], launch.grid[1], launch.grid[2] = grid
        launch.block[0], launch.block[1], launch.block[2] = block
        launch.shared = shared
        for each in arguments:
            if type(each) is not bytes:  # a bytearray may move
                raise TypeError(f"an argument of a kernel must be bytes, not {type(each).__name__}")
            addresses.push_back(<void*><char*>each)
        with nogil:
            result = self.native.get().launch_kernel(<Handle>address, launch, addresses.data())
        if result:
            raise error_of(result, "cuLaunchKernel", self.name)

    def launch_graph(self, uintptr_t graph):
        cdef Result result
        self.check()
        with nogil:
            result = self.native.get().launch_graph(<Handle>graph)
        if result:
            raise error_of(result, "cuGraphLaunch", self.name)

    def work_number(self):
        self.check()
        return self.native.get().last_work()

    def memory_device(self, uint64_t address):
        cdef int device = 0
        cdef Result result
        self.check_process()  # a closed stream has a context, too
        with nogil:
            result = self.native.get().memory_device(address, &device)
        if result:
            raise error_of(result, "cuPointerGetAttribute", self.name)
        return device

    def signal(self):
        cdef Tick tick
        cdef Result result
        self.check()
        with nogil:
            result = self.native.get().signal(False, &tick)
        if result:
            raise error_of(result, "cuEventRecord", self.name)
        return tick.number

    def mark(self):
        cdef Tick tick
        cdef Result result
        cdef Mark mark = Mark.__new__(Mark)
        self.check()
        with nogil:
            result = self.native.get().signal(True, &tick)
        if result:
            raise error_of(result, "cuEventRecord", self.name)
        mark.tick, mark.event, mark.process, mark.native = tick.number, tick.event, self.process, self.native
        return mark

    def elapsed_ms(self, start, end):
        cdef float milliseconds = 0
        cdef Result result
        self.check_process()
        cdef Handle first = self.event_of(start, "start"), last = self.event_of(end, "end")
        with nogil:
            result = self.native.get().elapsed(first, last, &milliseconds)
        if result:
            raise error_of(result, "cuEventElapsedTime", self.name)
        return milliseconds

    def reached(self):
        cdef int64_t tick
        cdef Result result
        self.check_process()
        with nogil:
            result = self.native.get().reached(&tick)
        if result:
            raise error_of(result, "cuEventQuery", self.name)
        return tick

    def idle(self):
        cdef Result result
        self.check_process()
        if self.closed:
            return True
        with nogil:
            result = self.native.get().query()
        if result and result != NotReady:
            raise error_of(result, "cuStreamQuery", self.name)
        return not result

    def wait_within(self, tick, int64_t nanoseconds):
        cdef int64_t number, last
        cdef Result result
        self.check_tick(tick)
        number = tick
        with nogil:
            result = self.native.get().wait(number, nanoseconds, &last)
        if result and result != NotReady:
            raise error_of(result, "cuEventQuery", self.name)
        self.finished.clear()
        return not result

    def make_wait(self, Stream other not None, tick):
        cdef int64_t number
        cdef Result result
        self.check()
        other.check_tick(tick)
        number = tick
        with nogil:
            result = other.native.get().make_wait(self.native.get()[0], number)
        if result:
            raise error_of(result, "cuStreamWaitEvent", self.name)

    @property
    def last_tick(self):
        return self.native.get().last()

    def take_failure(self):
        failure, self.failure = self.failure, None
        code = self.native_failure.get().exchange(0)
        return failure if failure is not None else (code or None)

    def destroy_events(self):
        self.closed = True
        with nogil:
            self.native.get().close()

    def drop_calls(self):
        cdef HostCall call
        for call in tuple(queued_calls):
            if call.stream is self:
                call.function = None
        self.finished.clear()

    def check_usable(self):
        if self.context is None:
            raise WrongState("the stream is not open")
        self.context.check_usable()
        if self.closed:
            raise WrongState(f"{self.name}: queue {self.handle:#x} was closed")

    cdef int check(self) except -1:
        if self.closed or getpid() != self.process:
            self.check_usable()
            self.check_open()  # a subclass may have replaced the method above
        return 0

    cdef int check_process(self) except -1:
        if self.context is None or getpid() != self.process:
            self.check_usable()
            self.check_open()
        return 0

    cdef int check_open(self) except -1:
        if self.closed or getpid() != self.process:
            raise WrongState(f"{self.name}: the stream is not open in this process")
        return 0

    cdef int check_tick(self, tick) except -1:
        self.check_process()
        if not 0 <= tick <= self.native.get().last():
            raise WrongState(f"{self.name}: tick {tick} was not signalled; the last one is {self.native.get().last()}")
        return 0

    cdef Handle event_of(self, mark, str name) except? NULL:
        if not isinstance(mark, Mark):
            raise TypeError(f"{name} must be a mark of a cuda queue, not {type(mark).__name__}")
        cdef Mark known = mark
        if known.native.get() is NULL or known.native.get().closed():
            raise WrongState(f"{self.name}: the queue of the {name} mark was closed")
        cdef Handle event = known.event
        cdef Result result
        with nogil:
            result = query_event(driver, event)
        if result == NotReady:
            raise WrongState(f"{self.name}: the {name} mark is not reached yet: wait for its tick first")
        return event


cdef void run_python_call(void* argument) noexcept with gil:
    cdef HostCall call = <HostCall>argument
    cdef Stream stream = call.stream
    function = call.function
    try:
        if function is not None:
            function()
    except BaseException as error:
        if stream is not None and stream.failure is None:
            keep_failure(stream, error)
    finally:
        if not call.repeated:  # else a graph owns it
            if stream is not None:
                stream.finished.append(function)
            queued_calls.discard(call)


cdef keep_failure(Stream stream, error):
    stream.failure = error
    lines = traceback.format_tb(error.__traceback__)
    error.add_note("raised by the queued function:\n" + "".join(lines).rstrip())
    without_frames(error)
