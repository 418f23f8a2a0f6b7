"""`will_it_fit()` and `sweep()`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import product
from typing import Any, Literal

from forebay import profiles as known_profiles
from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.byte_sizes import parse_bytes
from forebay.errors import WrongState
from forebay.interop.torch.fit.packing import pack
from forebay.interop.torch.fit.results import FitResult, FitTable
from forebay.interop.torch.fit.shared_runs import Progress, SharedRuns
from forebay.interop.torch.fit.tasks import IN_WORKER, FitTask

__all__ = ["processors", "run_tasks", "sweep", "will_it_fit"]

_PROFILES = ("rtx_4090", "a100", "h100", "h200")


def will_it_fit(
    function: Callable[[], object],
    profiles: Sequence[str] = _PROFILES,
    *,
    mode: Literal["shapes", "strict", "compute"] = "shapes",
    count: int = 1,
    memory: int | str | None = None,
    reserve: int | str | None = None,
    settings: str = "",
    executor: Executor | None = None,
    timeout: float | None = None,
    assume_mask: float | None = None,
    assume_routing: Literal["balanced", "worst"] | None = None,
    check_assumptions: bool = False,
) -> FitTable:
    """Run a function of a PyTorch program on emulated cards, and return on which of them it fits.

    Each card is a run in a Python process of its own, also with an executor: the allocator begins empty, and a program
    that depends on the properties of the card behaves as there. The processes that it starts count, too. If memory runs
    out in the mode "shapes", a second run with unlimited memory finds what the whole program needs, and replays of its
    allocations find the settings with which it fits. What functions print is discarded.

    Parameters
    ----------
    function : callable
        The function, which creates the model on the device "cuda" and runs, for example, two training steps.
    profiles : sequence of str, optional
        The cards, see docs/reference/profiles.md.
    mode : {"shapes", "strict", "compute"}, default "shapes"
        Compute only shapes, with assumed values where the program reads one ("shapes") or an error ("strict"), or
        compute the values, too.
    count : int, default 1
        Number of devices of each card.
    memory : int or str, optional
        Memory of each device: bytes, or a size such as "20GiB"; that of the profile by default.
    reserve : int or str, optional
        What is outside the allocator of each process on a device; as recorded on such cards by default.
    settings : str, optional
        Allocator settings, in the format of PYTORCH_ALLOC_CONF.
    executor : concurrent.futures.Executor, optional
        Runs the cards: threads, processes, or Dask workers (`distributed.Client(address).get_executor()`). By default
        as many run at a time as there are processors.
    timeout : float, optional
        Seconds that one run may take.
    assume_mask : float, optional
        In the mode "shapes", the share of elements that masks, `nonzero()` and `unique()` select, above 0 and at most
        1, which is the default.
    assume_routing : {"balanced", "worst"}, optional
        In the mode "shapes": tokens are routed to experts evenly, as by default, or all to the first one.
    check_assumptions : bool, default False
        In the mode "shapes", run each card again with the opposite of the assumed values, and say in
        `FitResult.assumption_check` whether the peak depends on them.

    Raises
    ------
    ValueError
        If a profile is unknown, or a choice among assumed values is not possible.
    ForebayError
        If the function cannot be sent to another process.

    Examples
    --------
    >>> from forebay.interop.torch import will_it_fit
    >>> def step():
    ...     import torch
    ...     torch.ones(30 << 28, device="cuda")
    >>> will_it_fit(step, ["rtx_4090", "h100"])  # doctest: +SKIP
    card                    allocated  reserved   nvidia-smi  of         held most by  needs
    rtx_4090  does not fit  0 B        0 B        468.00 MiB  23.52 GiB                30.00 GiB allocated
    h100      fits          30.00 GiB  30.00 GiB  30.67 GiB   79.19 GiB  other 100%
    """
    return sweep(
        function, {}, profiles, mode=mode, count=count, memory=memory, reserve=reserve, settings=settings,
        executor=executor, timeout=timeout, assume_mask=assume_mask, assume_routing=assume_routing,
        check_assumptions=check_assumptions,
    )  # fmt: skip


def sweep(
    function: Callable[..., object],
    grid: Mapping[str, Iterable[Any]],
    profiles: Sequence[str] = _PROFILES,
    *,
    mode: Literal["shapes", "strict", "compute"] = "shapes",
    count: int = 1,
    memory: int | str | None = None,
    reserve: int | str | None = None,
    settings: str = "",
    executor: Executor | None = None,
    timeout: float | None = None,
    assume_mask: float | None = None,
    assume_routing: Literal["balanced", "worst"] | None = None,
    check_assumptions: bool = False,
) -> FitTable:
    """Run a function with every combination of arguments on emulated cards.

    Parameters
    ----------
    function : callable
        The function, which is called with one keyword argument for each key of the grid.
    grid : Mapping of str to iterable
        The values of each argument, such as `{"batch": [8, 16, 32], "length": [1024, 2048]}`.
    profiles : sequence of str, optional
        The cards, see docs/reference/profiles.md.
    mode : {"shapes", "strict", "compute"}, default "shapes"
        Compute only shapes, with assumed values where the program reads one ("shapes") or an error ("strict"), or
        compute the values, too.
    count : int, default 1
        Number of devices of each card.
    memory : int or str, optional
        Memory of each device; that of the profile by default.
    reserve : int or str, optional
        What is outside the allocator, as for `will_it_fit`.
    settings : str, optional
        Allocator settings, in the format of PYTORCH_ALLOC_CONF.
    executor : concurrent.futures.Executor, optional
        Runs the cards, as for `will_it_fit`.
    timeout : float, optional
        Seconds that one run may take.
    assume_mask : float, optional
        The share of elements that masks select, as for `will_it_fit`.
    assume_routing : {"balanced", "worst"}, optional
        The routing of tokens to experts, as for `will_it_fit`.
    check_assumptions : bool, default False
        Run again with the opposite of the assumed values, as for `will_it_fit`.

    Returns
    -------
    FitTable
        One result for each combination and card; `FitTable.largest("batch")` returns the largest value that fits.

    Raises
    ------
    ValueError
        If a profile is unknown, or a choice among assumed values is not possible.
    ForebayError
        If the function cannot be sent to another process.

    Examples
    --------
    >>> from forebay.interop.torch import sweep
    >>> def step(batch):
    ...     import torch
    ...     torch.ones(batch, 1 << 28, device="cuda")
    >>> sweep(step, {"batch": [16, 32]}, ["rtx_4090", "h100"]).largest("batch")  # doctest: +SKIP
    {'rtx_4090': 16, 'h100': 32}
    """
    names = tuple(grid)
    nbytes, outside = (parse_bytes(each) if isinstance(each, str) else each for each in (memory, reserve))
    choices = _choices(mode, assume_mask, assume_routing, check_assumptions)
    tasks = []
    for values in product(*grid.values()):
        parameters = dict(zip(names, values, strict=True))
        fields = pack(function, parameters)
        options = (mode, count, nbytes, settings, outside, timeout, parameters)
        fields |= {"assumptions": choices, "check_assumptions": check_assumptions}
        tasks += [FitTask(each, *options, **fields) for each in profiles]
    return FitTable(run_tasks(tasks, executor), names)


def _choices(
    mode: str, mask: float | None, routing: Literal["balanced", "worst"] | None, is_checked: bool
) -> AssumptionChoices:
    """Return the choices among assumed values. Raises ValueError if the mode assumes none."""
    given = {"assume_mask": mask is not None, "assume_routing": routing is not None, "check_assumptions": is_checked}
    if mode != "shapes" and any(given.values()):
        name = next(name for name, is_given in given.items() if is_given)
        raise ValueError(f"{name} requires mode='shapes', not {mode!r}: values are assumed only there")
    return AssumptionChoices(1.0 if mask is None else mask, routing or "balanced")


def run_tasks(
    tasks: Sequence[FitTask], executor: Executor | None = None, progress: Progress | None = None
) -> tuple[FitResult, ...]:
    """Run tasks with an executor, by default as many at a time as there are processors. Raises as `sweep`."""
    if os.environ.get(IN_WORKER):
        raise WrongState("this program is run by will_it_fit(): call it below `if __name__ == '__main__':`")
    for task in tasks:
        if (kind := known_profiles.load(task.profile).kind) != "cuda":
            raise ValueError(
                f"{task.profile!r} is a profile of {kind} devices; those of CUDA devices are {_cuda_profiles()}"
            )
        _ = task.outside  # raises ValueError if nothing is left
    runs = SharedRuns(tasks, progress)
    if executor is not None:
        return runs.run(executor)
    with ThreadPoolExecutor(max(1, min(processors(), len(tasks)))) as threads:
        return runs.run(threads)


def processors() -> int:
    """Return the number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return (len(affinity(0)) if affinity is not None else os.cpu_count()) or 1


def _cuda_profiles() -> str:
    return ", ".join(known_profiles.names("cuda"))
