"""Triton's choice of configurations and its measurements, without a GPU.

# Note [Configurations without measurements]
`triton.autotune` launches a kernel in each configuration and takes the fastest. Here nothing is fast or slow: the first
configuration that fits the card is taken, which is listed as an assumption, and the others are not compiled. What the
measurements allocate is allocated: the copies of arguments that are restored, and the memory of 256 MiB that clears the
cache of the card, so that the peak is that of a run on a GPU. A configuration decides no size of a tensor, except where
the program asks for it. `triton.testing.do_bench` calls its function once and returns a stated time, with a warning.
Test: tests/interop/torch/triton/test_tuning.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from forebay.errors import ForebayWarning
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.processes import assumed_values
from forebay.interop.torch.triton.target import is_measuring

__all__ = ["replace_tuning"]

_STATED = 1.0  # ms
_NOT_TAKEN = [2.0] * 3
_FAILED = [float("inf")] * 3
_fits: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # whether a launch in progress has found a configuration
_before: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()  # what was chosen before the emulation
_said: set[str] = set()


def replace_tuning(undo: ExitStack) -> None:
    """Let Triton, which is imported, choose without measurements. `undo` receives what restores it."""
    names = NameReplacements()
    undo.callback(names.restore)
    undo.callback(_forget)
    tuner: Any = import_module("triton.runtime.autotuner").Autotuner
    testing: Any = import_module("triton.testing")
    names.replace(tuner, "run", _launching(tuner.run))
    names.replace(tuner, "_bench", _first_that_fits(tuner._bench))
    names.replace(testing, "do_bench", _stated(testing.do_bench, clears=True))
    names.replace(testing, "do_bench_cudagraph", _stated(testing.do_bench_cudagraph, clears=False))


def _forget() -> None:
    """Forget what was chosen for emulated cards."""
    _said.clear()
    for tuner, chosen in tuple(_before.items()):
        tuner.cache.clear()
        tuner.cache.update(chosen)
    _before.clear()


def _launching(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that launches a kernel, for which no configuration is found yet."""

    @wraps(run)
    def launch(self: Any, *args: Any, **keywords: Any) -> Any:
        _before.setdefault(self, {**self.cache})
        _fits[self] = False
        return run(self, *args, **keywords)

    return launch


def _first_that_fits(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that gives the first configuration that fits the shortest time."""

    @wraps(bench)
    def run(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if _fits.get(self):
            return _NOT_TAKEN
        driver: Any = import_module("triton.runtime.driver").driver.active
        found: list[Any] = []

        def measure() -> None:
            found.append(bench(self, *args, config=config, **meta))

        in_place_of_a_measurement = driver.get_benchmarker()
        in_place_of_a_measurement(measure)
        if found[0] == _FAILED:
            return found[0]
        if self._do_bench is None:
            clearing = driver.get_empty_cache_for_benchmark()
            in_place_of_a_measurement(measure)  # what it allocates is allocated beside that memory
            del clearing
        _fits[self] = True
        assumed_values.note(
            values.calling_line()[0],
            f"{self.base_fn.__name__} of Triton takes its first configuration that fits the card ({config})",
        )
        return found[0]

    return run


def _stated(bench: Callable[..., Any], *, clears: bool) -> Callable[..., Any]:
    """Return a function that measures nothing."""

    @wraps(bench)
    def run(
        fn: Callable[[], object], *_: object, quantiles: Sequence[float] | None = None, return_mode: str = "mean",
        **__: object,
    ) -> Any:  # fmt: skip
        fn()
        if clears:
            import_module("triton.runtime.driver").driver.active.get_empty_cache_for_benchmark()
        if not is_measuring():
            _warn(bench.__name__)
        if quantiles is not None:
            times = [_STATED] * len(quantiles)
            return times[0] if len(times) == 1 else times
        return [_STATED] if return_mode == "all" else _STATED

    return run


def _warn(name: str) -> None:
    if name not in _said:
        _said.add(name)
        warnings.warn(
            f"triton.testing.{name}() measures nothing on emulated devices: it returns {_STATED:g} ms",
            ForebayWarning,
            stacklevel=3,
        )
