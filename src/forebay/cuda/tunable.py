"""The switches of PyTorch's matrix-product tuner, which keep what is set. (torch.cuda.tunable)

There is no product to tune, so nothing is ever measured, read or written: `get_results()` stays empty, and the
environment's variables are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from forebay.faces.unsupported import unsupported
from forebay.runtime.devices.current import opened_for, resolve

__all__ = [
    "dynamic_dims_mask",
    "enable",
    "get_cublaslt_requested_algo_count",
    "get_filename",
    "get_max_tuning_duration",
    "get_max_tuning_iterations",
    "get_results",
    "get_rotating_buffer_size",
    "get_validators",
    "is_enabled",
    "mgpu_tune_gemm_in_file",
    "read_file",
    "record_untuned_enable",
    "record_untuned_is_enabled",
    "set_cublaslt_requested_algo_count",
    "set_filename",
    "set_max_tuning_duration",
    "set_max_tuning_iterations",
    "set_numerical_check_tolerances",
    "set_rotating_buffer_size",
    "tune_gemm_in_file",
    "tuning_enable",
    "tuning_is_enabled",
    "wildcard_fallback_enable",
    "wildcard_fallback_is_enabled",
    "write_file",
    "write_file_on_exit",
]

_REASON = "a runtime has no matrix products to tune. Tune them in the framework that computes."
_WORDS = {bool: "a bool", int: "an int", str: "a string"}


@dataclass
class _State:
    enabled: bool = False
    tuning: bool = True
    recording: bool = False
    wildcards: bool = False
    duration: int = 30
    iterations: int = 100
    algorithms: int = 8
    rotating_mib: int = -1
    filename: str = ""


_state = _State()


_T = TypeVar("_T", bool, int, str)


def _checked(name: str, value: _T, wanted: type[_T]) -> _T:
    if type(value) is not wanted:
        raise RuntimeError(f"cuda_{name} expects {_WORDS[wanted]}, but got {type(value).__name__}")
    return value


def enable(val: bool = True) -> None:
    """Switch the tuner on, which finds nothing to do. (torch.cuda.tunable.enable)"""
    _state.enabled = _checked("tunableop_enable", val, bool)


def is_enabled() -> bool:
    """What `enable` set; at first False. (torch.cuda.tunable.is_enabled)"""
    return _state.enabled


def tuning_enable(val: bool = True) -> None:
    """Allow to measure what is not known yet. (torch.cuda.tunable.tuning_enable)"""
    _state.tuning = _checked("tunableop_tuning_enable", val, bool)


def tuning_is_enabled() -> bool:
    """What `tuning_enable` set; at first True. (torch.cuda.tunable.tuning_is_enabled)"""
    return _state.tuning


def record_untuned_enable(val: bool = True) -> None:
    """Note what is not known yet. (torch.cuda.tunable.record_untuned_enable)"""
    _state.recording = _checked("record_untuned_enable", val, bool)


def record_untuned_is_enabled() -> bool:
    """What `record_untuned_enable` set; at first False. (torch.cuda.tunable.record_untuned_is_enabled)"""
    return _state.recording


def wildcard_fallback_enable(val: bool = True) -> None:
    """Accept what was measured for similar shapes. (torch.cuda.tunable.wildcard_fallback_enable)"""
    _state.wildcards = _checked("tunableop_wildcard_fallback_enable", val, bool)


def wildcard_fallback_is_enabled() -> bool:
    """What `wildcard_fallback_enable` set; at first False. (torch.cuda.tunable.wildcard_fallback_is_enabled)"""
    return _state.wildcards


def set_max_tuning_duration(duration: int) -> None:
    """How long one product may be measured, in ms, at least 0. (torch.cuda.tunable.set_max_tuning_duration)"""
    _state.duration = max(0, _checked("tunableop_set_max_tuning_duration", duration, int))


def get_max_tuning_duration() -> int:
    """In ms; at first 30. (torch.cuda.tunable.get_max_tuning_duration)"""
    return _state.duration


def set_max_tuning_iterations(iterations: int) -> None:
    """How often one product may be measured, at least 0. (torch.cuda.tunable.set_max_tuning_iterations)"""
    _state.iterations = max(0, _checked("tunableop_set_max_tuning_iterations", iterations, int))


def get_max_tuning_iterations() -> int:
    """At first 100. (torch.cuda.tunable.get_max_tuning_iterations)"""
    return _state.iterations


def set_cublaslt_requested_algo_count(count: int) -> None:
    """How many algorithms to try, at least 1. (torch.cuda.tunable.set_cublaslt_requested_algo_count)"""
    _state.algorithms = max(1, _checked("tunableop_set_cublaslt_requested_algo_count", count, int))


def get_cublaslt_requested_algo_count() -> int:
    """At first 8. (torch.cuda.tunable.get_cublaslt_requested_algo_count)"""
    return _state.algorithms


def set_rotating_buffer_size(buffer_size: int) -> None:
    """In MiB; 0 for none, less for that of the L2 cache. (torch.cuda.tunable.set_rotating_buffer_size)"""
    _state.rotating_mib = _checked("tunableop_set_rotating_buffer_size", buffer_size, int)


def get_rotating_buffer_size() -> int:
    """In bytes; at first the size of the current device's L2 cache, for which the device is opened.

    0 where the device does not tell. (torch.cuda.tunable.get_rotating_buffer_size)
    """
    if _state.rotating_mib >= 0:
        return _state.rotating_mib << 20
    return int(opened_for("cuda").port.props.details.get("L2_cache_size", 0))


def set_numerical_check_tolerances(enable: bool, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """Accepted: there is no result to check. (torch.cuda.tunable.set_numerical_check_tolerances)"""
    if type(enable) is not bool:
        raise RuntimeError(f"First argument must be a boolean, got {type(enable).__name__}")
    for place, name, value in (("Second", "atol", atol), ("Third", "rtol", rtol)):
        if type(value) is not float:
            raise RuntimeError(f"{place} argument ({name}) must be a float, got {type(value).__name__}")


@contextmanager
def dynamic_dims_mask(M: bool = False, N: bool = False, K: bool = False, BATCH: bool = False) -> Iterator[None]:  # noqa: ARG001, N803 -- PyTorch's
    """Inside, these dimensions would not count. (torch.cuda.tunable.dynamic_dims_mask)"""
    yield


def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
    """Name the file of results, with the current device's index in it if wanted. (torch.cuda.tunable.set_filename)"""
    name = _checked("tunableop_set_filename", filename, str)
    if insert_device_ordinal:
        name = _numbered(name, resolve("cuda").index or 0)
    _state.filename = name


def _numbered(name: str, index: int) -> str:
    """The index in place of %d, else before the last dot, else at the end.

    >>> _numbered("results.csv", 1), _numbered("r%d.tar.gz", 1), _numbered("results", 1)
    ('results1.csv', 'r1.tar.gz', 'results1')
    """
    if "%d" in name:
        return name.replace("%d", str(index), 1)
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}{index}{dot}{suffix}" if dot else f"{name}{index}"


def get_filename() -> str:
    """What `set_filename` made; at first empty. (torch.cuda.tunable.get_filename)"""
    return _state.filename


def get_results() -> tuple[tuple[str, str, str, float], ...]:
    """Empty: nothing was tuned. (torch.cuda.tunable.get_results)"""
    return ()


def get_validators() -> tuple[tuple[str, str], ...]:
    """Empty: no library's version decides. (torch.cuda.tunable.get_validators)"""
    return ()


def read_file(filename: str | None = None) -> bool:
    """False, without reading: results of other libraries are not valid here. (torch.cuda.tunable.read_file)"""
    if filename is not None:
        _checked("tunableop_read_file", filename, str)
    return False


def write_file_on_exit(val: bool) -> None:
    """Accepted: there is nothing to write. (torch.cuda.tunable.write_file_on_exit, only in 2.4)"""
    _checked("tunableop_write_file_on_exit", val, bool)


write_file = unsupported(__name__, "write_file(filename=None)", _REASON)
tune_gemm_in_file = unsupported(__name__, "tune_gemm_in_file(filename)", _REASON)
mgpu_tune_gemm_in_file = unsupported(__name__, "mgpu_tune_gemm_in_file(filename_pattern, num_gpus)", _REASON)
