"""Functions of the CUDA runtime library, error codes, and starting and stopping the profiler."""

from __future__ import annotations

import ctypes

from support.on_oracle import outcome

CODES = (
    0,
    1,
    2,
    3,
    35,
    100,
    101,
    209,
    400,
    600,
    900,
    999,
    11,
    7777,
)  # codes that the stand-in knows, and two unknown ones


def every_code_has_its_text(cuda, torch_like):
    runtime = cuda.cudart()
    return {code: runtime.cudaGetErrorString(runtime.cudaError(code)) for code in CODES}


def error_codes_raise_without_initialising(cuda, torch_like):
    found = [outcome(cuda, cuda.check_error, code) for code in (0, 2, 7777)]
    return [found, str(cuda.CudaError(2)), repr(cuda.CudaError(600)), cuda.is_initialized()]


def error_code_is_an_int(cuda, torch_like):
    return [outcome(cuda, call, "x")["error"] for call in (cuda.CudaError, cuda.check_error)]


def error_code_type(cuda, torch_like):
    return outcome(cuda, cuda.cudart().cudaGetErrorString, 2)["error"]


def names_of_codes(cuda, torch_like):
    kind = cuda.cudart().cudaError
    return [
        repr(kind.success),
        kind.success == 0,
        kind.success.name,
        repr(kind(2)),
        int(kind(2)),
        list(kind.__members__),
    ]


def cuda_status_codes(cuda, torch_like):
    return [cuda.cudaStatus.SUCCESS, cuda.cudaStatus.ERROR_NOT_READY]


def cudart_initialises(cuda, torch_like):
    before = cuda.is_initialized()
    return [before, cuda.cudart() is cuda.cudart(), cuda.is_initialized()]


def memory_of_a_missing_device(cuda, torch_like):
    found = outcome(cuda, cuda.cudart().cudaMemGetInfo, 99)
    return [found["error"], found["message"].splitlines()[:2]]


def accelerator_error_has_cuda_code(cuda, torch_like):
    try:
        cuda.cudart().cudaMemGetInfo(99)
    except cuda.AcceleratorError as error:
        return [error.error_code, isinstance(error, RuntimeError)]
    return None


def all_memory_of_the_current_device(cuda, torch_like):
    runtime = cuda.cudart()
    return [runtime.cudaMemGetInfo(device)[1] for device in (0, 1, -1)]


def stream_creation_and_destruction(cuda, torch_like):
    runtime, handle = cuda.cudart(), ctypes.c_uint64()
    made = int(runtime.cudaStreamCreate(ctypes.addressof(handle)))
    return [made, handle.value != 0, handle.value % 2, int(runtime.cudaStreamDestroy(handle.value))]


def host_memory_registration(cuda, torch_like):
    runtime, memory = cuda.cudart(), ctypes.create_string_buffer(1 << 16)
    address = ctypes.addressof(memory)
    return [int(runtime.cudaHostRegister(address, 1 << 16, 0)), int(runtime.cudaHostUnregister(address))]


def profiler_start_and_stop(cuda, torch_like):
    def inside():
        with cuda.profiler.profile():
            raise KeyError("out")

    runtime = cuda.cudart()
    codes = [int(runtime.cudaProfilerStart()), int(runtime.cudaProfilerStop())]
    return [cuda.profiler.start(), cuda.profiler.stop(), codes, outcome(cuda, inside), cuda.profiler.DEFAULT_FLAGS]
