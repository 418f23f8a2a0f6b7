"""Settings of PyTorch's matrix-product tuner, stored without effect (`torch.cuda.tunable`).

There are no products to tune: nothing is measured, read or written, `get_results()` is always empty, and PyTorch's
environment variables are ignored. Nothing initialises CUDA unless noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from forebay.names.unsupported import unsupported
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

_TYPE_NAMES = {bool: "a bool", int: "an int", str: "a string"}


@dataclass
class _State:
    enabled: bool = False
    tuning: bool = True
    recording: bool = False
    wildcard_fallback: bool = False
    duration_ms: int = 30
    iterations: int = 100
    cublaslt_algorithms: int = 8
    rotating_mib: int = -1
    filename: str = ""


_state = _State()


_T = TypeVar("_T", bool, int, str)


def _checked(name: str, value: _T, expected: type[_T]) -> _T:
    if type(value) is not expected:
        raise RuntimeError(f"cuda_{name} expects {_TYPE_NAMES[expected]}, but got {type(value).__name__}")
    return value


# Written by tools/write_names.py from tools/names/tunable.toml: edit the table, not these lines.


def enable(val: bool = True) -> None:
    """Enable or disable the tuner.

    As `torch.cuda.tunable.enable`.

    Parameters
    ----------
    val : bool, default True
        Stored without effect.

    Raises
    ------
    RuntimeError
        If `val` has another type.
    """
    _state.enabled = _checked("tunableop_enable", val, bool)


def is_enabled() -> bool:
    """Return the setting of `enable`, False initially.

    As `torch.cuda.tunable.is_enabled`.
    """
    return _state.enabled


def tuning_enable(val: bool = True) -> None:
    """Enable or disable the tuning of products that have no result yet.

    As `torch.cuda.tunable.tuning_enable`.

    Parameters
    ----------
    val : bool, default True
        Stored without effect.

    Raises
    ------
    RuntimeError
        If `val` has another type.
    """
    _state.tuning = _checked("tunableop_tuning_enable", val, bool)


def tuning_is_enabled() -> bool:
    """Return the setting of `tuning_enable`, True initially.

    As `torch.cuda.tunable.tuning_is_enabled`.
    """
    return _state.tuning


def record_untuned_enable(val: bool = True) -> None:
    """Enable or disable the recording of products that have no result yet.

    As `torch.cuda.tunable.record_untuned_enable`.

    Parameters
    ----------
    val : bool, default True
        Stored without effect.

    Raises
    ------
    RuntimeError
        If `val` has another type.
    """
    _state.recording = _checked("record_untuned_enable", val, bool)


def record_untuned_is_enabled() -> bool:
    """Return the setting of `record_untuned_enable`, False initially.

    As `torch.cuda.tunable.record_untuned_is_enabled`.
    """
    return _state.recording


def wildcard_fallback_enable(val: bool = True) -> None:
    """Enable or disable the use of results for similar shapes.

    As `torch.cuda.tunable.wildcard_fallback_enable`.

    Parameters
    ----------
    val : bool, default True
        Stored without effect.

    Raises
    ------
    RuntimeError
        If `val` has another type.
    """
    _state.wildcard_fallback = _checked("tunableop_wildcard_fallback_enable", val, bool)


def wildcard_fallback_is_enabled() -> bool:
    """Return the setting of `wildcard_fallback_enable`, False initially.

    As `torch.cuda.tunable.wildcard_fallback_is_enabled`.
    """
    return _state.wildcard_fallback


def set_max_tuning_duration(duration: int) -> None:
    """Set the longest time to tune one product.

    As `torch.cuda.tunable.set_max_tuning_duration`.

    Parameters
    ----------
    duration : int
        Milliseconds; a negative number counts as 0. Stored without effect.

    Raises
    ------
    RuntimeError
        If `duration` has another type.
    """
    _state.duration_ms = max(0, _checked("tunableop_set_max_tuning_duration", duration, int))


def get_max_tuning_duration() -> int:
    """Return the longest time to tune one product, initially 30 milliseconds.

    As `torch.cuda.tunable.get_max_tuning_duration`.
    """
    return _state.duration_ms


def set_max_tuning_iterations(iterations: int) -> None:
    """Set the largest number of iterations to tune one product.

    As `torch.cuda.tunable.set_max_tuning_iterations`.

    Parameters
    ----------
    iterations : int
        A negative number counts as 0. Stored without effect.

    Raises
    ------
    RuntimeError
        If `iterations` has another type.
    """
    _state.iterations = max(0, _checked("tunableop_set_max_tuning_iterations", iterations, int))


def get_max_tuning_iterations() -> int:
    """Return the largest number of iterations to tune one product, initially 100.

    As `torch.cuda.tunable.get_max_tuning_iterations`.
    """
    return _state.iterations


def set_cublaslt_requested_algo_count(count: int) -> None:
    """Set the number of cuBLASLt algorithms to try.

    As `torch.cuda.tunable.set_cublaslt_requested_algo_count`.

    Parameters
    ----------
    count : int
        A number below 1 counts as 1. Stored without effect.

    Raises
    ------
    RuntimeError
        If `count` has another type.
    """
    _state.cublaslt_algorithms = max(1, _checked("tunableop_set_cublaslt_requested_algo_count", count, int))


def get_cublaslt_requested_algo_count() -> int:
    """Return the number of cuBLASLt algorithms to try, initially 8.

    As `torch.cuda.tunable.get_cublaslt_requested_algo_count`.
    """
    return _state.cublaslt_algorithms


def set_rotating_buffer_size(buffer_size: int) -> None:
    """Set the size of the rotating buffer.

    As `torch.cuda.tunable.set_rotating_buffer_size`.

    Parameters
    ----------
    buffer_size : int
        MiB; 0 for none, negative for the size of the L2 cache. Stored without effect.

    Raises
    ------
    RuntimeError
        If `buffer_size` has another type.
    """
    _state.rotating_mib = _checked("tunableop_set_rotating_buffer_size", buffer_size, int)


def get_rotating_buffer_size() -> int:
    """Return the size of the rotating buffer.

    As `torch.cuda.tunable.get_rotating_buffer_size`. To read the size of the L2 cache, initialises CUDA and
    opens the current device.

    Returns
    -------
    int
        Bytes; initially the size of the L2 cache, or 0 if the device does not report it.
    """
    if _state.rotating_mib >= 0:
        return _state.rotating_mib << 20
    return int(opened_for("cuda").port.props.details.get("L2_cache_size", 0))


@contextmanager
def dynamic_dims_mask(M: bool = False, N: bool = False, K: bool = False, BATCH: bool = False) -> Iterator[None]:  # noqa: ARG001, N803 -- PyTorch's
    """Accept dimensions to ignore while the body of a `with` statement tunes; has no effect.

    As `torch.cuda.tunable.dynamic_dims_mask`.

    Parameters
    ----------
    M : bool, default False
        Ignored.
    N : bool, default False
        Ignored.
    K : bool, default False
        Ignored.
    BATCH : bool, default False
        Ignored.
    """
    yield


def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
    """Set the name of the results file, which is never read or written.

    As `torch.cuda.tunable.set_filename`.

    Parameters
    ----------
    filename : str
        The name.
    insert_device_ordinal : bool, default False
        Insert the current device's index into the name.

    Raises
    ------
    RuntimeError
        If `filename` is not a string.
    """
    name = _checked("tunableop_set_filename", filename, str)
    if insert_device_ordinal:
        name = _with_device_index(name, resolve("cuda").index or 0)
    _state.filename = name


def get_filename() -> str:
    """Return the name of the results file, empty initially.

    As `torch.cuda.tunable.get_filename`.
    """
    return _state.filename


def get_results() -> tuple[tuple[str, str, str, float], ...]:
    """Return the tuning results: always empty.

    As `torch.cuda.tunable.get_results`.

    Examples
    --------
    >>> from forebay.cuda import tunable
    >>> tunable.get_results()
    ()
    """
    return ()


def get_validators() -> tuple[tuple[str, str], ...]:
    """Return the library versions for which results are valid: always empty.

    As `torch.cuda.tunable.get_validators`.

    Examples
    --------
    >>> from forebay.cuda import tunable
    >>> tunable.get_validators()
    ()
    """
    return ()


def read_file(filename: str | None = None) -> bool:
    """Return False without reading: results of other libraries are not valid here.

    As `torch.cuda.tunable.read_file`.

    Parameters
    ----------
    filename : str, optional
        Ignored.

    Raises
    ------
    RuntimeError
        If `filename` is not a string.
    """
    if filename is not None:
        _checked("tunableop_read_file", filename, str)
    return False


def write_file_on_exit(val: bool) -> None:
    """Check the argument: there are no results to write.

    As `torch.cuda.tunable.write_file_on_exit`. Only in PyTorch 2.4.

    Parameters
    ----------
    val : bool
        Ignored.

    Raises
    ------
    RuntimeError
        If `val` has another type.
    """
    _checked("tunableop_write_file_on_exit", val, bool)


# End of the written lines.


def set_numerical_check_tolerances(enable: bool, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """Check the arguments: there are no results to compare.

    As `torch.cuda.tunable.set_numerical_check_tolerances`.

    Parameters
    ----------
    enable : bool
        Ignored.
    atol : float, default 1e-5
        Ignored.
    rtol : float, default 1e-5
        Ignored.

    Raises
    ------
    RuntimeError
        If an argument has another type.
    """
    if type(enable) is not bool:
        raise RuntimeError(f"First argument must be a boolean, got {type(enable).__name__}")
    for place, name, value in (("Second", "atol", atol), ("Third", "rtol", rtol)):
        if type(value) is not float:
            raise RuntimeError(f"{place} argument ({name}) must be a float, got {type(value).__name__}")


def _with_device_index(name: str, index: int) -> str:
    """Insert the index in place of %d, else before the last dot, else at the end.

    >>> _with_device_index("results.csv", 1), _with_device_index("r%d.tar.gz", 1), _with_device_index("results", 1)
    ('results1.csv', 'r1.tar.gz', 'results1')
    """
    if "%d" in name:
        return name.replace("%d", str(index), 1)
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}{index}{dot}{suffix}" if dot else f"{name}{index}"


write_file: Final = unsupported(__name__, "write_file(filename=None)")
tune_gemm_in_file: Final = unsupported(__name__, "tune_gemm_in_file(filename)")
mgpu_tune_gemm_in_file: Final = unsupported(__name__, "mgpu_tune_gemm_in_file(filename_pattern, num_gpus)")
