# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""C++ functions that PyTorch's pluggable allocator calls; documented in _torch_callbacks.pyi."""

from libc.stdint cimport uint64_t, uintptr_t
from libcpp cimport bool as boolean
from libcpp.string cimport string

import _thread

cdef extern from *:
    r"""
    #include <cstdint>
    #include <functional>
    #include <cxxabi.h>
    #include <new>
    #include <stdexcept>
    #include <string>
    #include <typeinfo>
    #include <utility>

    #if PY_VERSION_HEX < 0x030D0000
    #define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
    #endif

    namespace {

    struct Failure {
        enum Kind { none, out_of_memory, other } kind = none;
        std::string text;
    };

    using PoolId = std::pair<unsigned long long, unsigned long long>;  // c10::MempoolId_t
    using StreamFilter = std::function<bool(void*)>;  // true for the streams of a capture

    // What Cython implements below. Each runs with the GIL, and raises nothing.
    struct Callbacks {
        void* (*allocate)(ssize_t, int, void*, Failure*);
        void (*release)(void*);
        void (*record)(void*, void*, Failure*);
        void (*reset)(Failure*);
        void (*limit)(double, int, Failure*);
        void* (*base)(void*, size_t*);
        void (*begin)(int, uint64_t, uint64_t, const StreamFilter*, Failure*);
        void (*end)(int, uint64_t, uint64_t, Failure*);
        void (*drop)(int, uint64_t, uint64_t);
    } python;

    // The constructor and the type of c10::OutOfMemoryError, which PyTorch turns into torch.OutOfMemoryError.
    struct SourceLocation {
        const char* function;
        const char* file;
        std::uint32_t line;
    };
    using Construct = void (*)(void*, SourceLocation, std::string);
    Construct construct_error = nullptr;
    std::type_info* error_type = nullptr;
    constexpr std::size_t error_bytes = 1024;  // an error of PyTorch 2.15 has 184

    void set_error_class(std::uintptr_t construct, std::uintptr_t type) {
        construct_error = reinterpret_cast<Construct>(construct);
        error_type = reinterpret_cast<std::type_info*>(type);
    }

    void destroy_error(void* error) {  // by the first function of its table, the destructor
        (*static_cast<void (***)(void*)>(error))[0](error);
    }

    [[noreturn]] void throw_error(const Failure& failure) {
        if (failure.kind == Failure::out_of_memory && construct_error && error_type) {
            void* error = abi::__cxa_allocate_exception(error_bytes);
            try {
                construct_error(error, {"allocate", "forebay", 0}, failure.text);
            } catch (...) {
                abi::__cxa_free_exception(error);
                throw;
            }
            abi::__cxa_throw(error, error_type, destroy_error);
        }
        throw std::runtime_error(failure.text);
    }

    // Whether this thread may call Python: not any more once the interpreter exits, unless this thread is in Python.
    bool python_runs() {
        void* running = PyThreadState_GetUnchecked();
        return (running && running == PyGILState_GetThisThreadState()) || Py_IsInitialized();
    }

    class Gil {  // also keeps an exception that is being handled: memory is freed while it propagates
      public:
        Gil() : state_(PyGILState_Ensure()) { PyErr_Fetch(&type_, &value_, &traceback_); }
        ~Gil() {
            PyErr_Restore(type_, value_, traceback_);
            PyGILState_Release(state_);
        }
        Gil(const Gil&) = delete;
        Gil& operator=(const Gil&) = delete;

      private:
        PyGILState_STATE state_;
        PyObject *type_, *value_, *traceback_;
    };

    template <class... Parameters, class... Arguments>
    void call(void (*function)(Parameters...), Arguments... arguments) {  // nothing once Python has ended
        if (python_runs()) {
            Gil gil;
            function(arguments...);
        }
    }

    template <class... Parameters, class... Arguments>
    void call_checked(void (*function)(Parameters...), Arguments... arguments) {
        Failure failure;
        call(function, arguments..., &failure);
        if (failure.kind) throw_error(failure);
    }

    void* on_allocate(ssize_t nbytes, int device, void* stream) {
        if (!python_runs()) throw std::runtime_error("forebay: memory was requested after the end of Python");
        Failure failure;
        void* address;
        {
            Gil gil;
            address = python.allocate(nbytes, device, stream, &failure);
        }
        if (failure.kind) throw_error(failure);
        return address;
    }
    void on_release(void* address, ssize_t, int, void*) {
        if (address) call(python.release, address);
    }
    void on_record(void* address, void* stream) {
        if (address) call_checked(python.record, address, stream);
    }
    void on_reset() { call_checked(python.reset); }
    void on_limit(double fraction, int device) { call_checked(python.limit, fraction, device); }
    void* on_base(void* address, size_t* size) {
        if (!python_runs()) return address;
        Gil gil;
        return python.base(address, size);
    }
    void on_begin(int device, PoolId pool, StreamFilter filter) {
        call_checked(python.begin, device, pool.first, pool.second, static_cast<const StreamFilter*>(&filter));
    }
    void on_end(int device, PoolId pool) { call_checked(python.end, device, pool.first, pool.second); }
    void on_drop(int device, PoolId pool) { call(python.drop, device, pool.first, pool.second); }

    const std::pair<const char*, void (*)()> functions[] = {
        {"allocate", reinterpret_cast<void (*)()>(on_allocate)},
        {"release", reinterpret_cast<void (*)()>(on_release)},
        {"record", reinterpret_cast<void (*)()>(on_record)},
        {"reset", reinterpret_cast<void (*)()>(on_reset)},
        {"limit", reinterpret_cast<void (*)()>(on_limit)},
        {"base", reinterpret_cast<void (*)()>(on_base)},
        {"begin", reinterpret_cast<void (*)()>(on_begin)},
        {"end", reinterpret_cast<void (*)()>(on_end)},
        {"drop", reinterpret_cast<void (*)()>(on_drop)},
    };

    }  // namespace
    """
    ctypedef enum Kind "Failure::Kind":
        OUT_OF_MEMORY "Failure::out_of_memory"
        OTHER "Failure::other"
    cdef cppclass Failure:
        Kind kind
        string text
    cdef cppclass StreamFilter:
        StreamFilter()
        boolean call "operator()"(void*) except +
    ctypedef struct Callbacks:
        void* (*allocate)(ssize_t, int, void*, Failure*) noexcept
        void (*release)(void*) noexcept
        void (*record)(void*, void*, Failure*) noexcept
        void (*reset)(Failure*) noexcept
        void (*limit)(double, int, Failure*) noexcept
        void* (*base)(void*, size_t*) noexcept
        void (*begin)(int, uint64_t, uint64_t, const StreamFilter*, Failure*) noexcept
        void (*end)(int, uint64_t, uint64_t, Failure*) noexcept
        void (*drop)(int, uint64_t, uint64_t) noexcept
    ctypedef struct Named:
        const char* first
        void* second
    Callbacks python
    Named functions[9]
    void set_error_class(uintptr_t, uintptr_t)

cdef object _handlers  # see AllocatorHandlers
cdef dict _blocks  # the live blocks, by address


cdef void describe(object error, Failure* failure) noexcept:
    """Describe an error for PyTorch. One that is not an Exception, such as KeyboardInterrupt, is raised again."""
    failure.kind = OTHER
    try:
        text = _handlers.text_of(error)
        if _handlers.is_out_of_memory(error):
            failure.kind = OUT_OF_MEMORY
        if isinstance(error, KeyboardInterrupt):
            _thread.interrupt_main()
        failure.text = text.encode()
    except BaseException:
        failure.text = b"forebay: an error could not be described"


cdef void* allocate(ssize_t nbytes, int device, void* stream, Failure* failure) noexcept:
    try:
        return <void*><uintptr_t>_handlers.allocate(nbytes, device, <uintptr_t>stream)
    except BaseException as error:
        describe(error, failure)
    return NULL


cdef void release(void* address) noexcept:
    if _blocks.pop(<uintptr_t>address, None) is None:
        _handlers.unknown(<uintptr_t>address)


cdef void record(void* address, void* stream, Failure* failure) noexcept:
    try:
        _handlers.record_stream(<uintptr_t>address, <uintptr_t>stream)
    except BaseException as error:
        describe(error, failure)


cdef void reset(Failure* failure) noexcept:
    try:
        _handlers.empty_cache()
    except BaseException as error:
        describe(error, failure)


cdef void limit(double fraction, int device, Failure* failure) noexcept:
    try:
        _handlers.set_memory_fraction(fraction, device)
    except BaseException as error:
        describe(error, failure)


cdef void* base(void* address, size_t* size) noexcept:
    cdef uintptr_t start
    try:
        start, nbytes = _handlers.segment_of(<uintptr_t>address)
        size[0] = nbytes
        return <void*>start
    except BaseException as error:
        _handlers.warn(error)
    return address


cdef void begin(int device, uint64_t first, uint64_t second, const StreamFilter* covers, Failure* failure) noexcept:
    cdef CapturedStreams captured = CapturedStreams()
    try:
        captured.covers = covers[0]
        _handlers.begin_pool(device, (first, second), captured)
    except BaseException as error:
        describe(error, failure)


cdef void end(int device, uint64_t first, uint64_t second, Failure* failure) noexcept:
    try:
        _handlers.end_pool(device, (first, second))
    except BaseException as error:
        describe(error, failure)


cdef void drop(int device, uint64_t first, uint64_t second) noexcept:
    try:
        _handlers.release_pool(device, (first, second))
    except BaseException as error:
        _handlers.warn(error)


cdef class CapturedStreams:
    cdef StreamFilter covers

    def __contains__(self, stream):
        return self.covers.call(<void*><uintptr_t>stream)


def connect(handlers, dict blocks not None):
    global _handlers, _blocks
    _handlers, _blocks = handlers, blocks
    python.allocate, python.release, python.record, python.reset = allocate, release, record, reset
    python.limit, python.base, python.begin, python.end, python.drop = limit, base, begin, end, drop
    return {functions[at].first.decode(): <uintptr_t>functions[at].second for at in range(9)}


def set_out_of_memory_class(uintptr_t construct, uintptr_t type_info):
    set_error_class(construct, type_info)
