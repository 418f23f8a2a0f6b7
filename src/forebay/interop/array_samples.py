"""A sample of the arrays that NumPy's previous allocator serves, the small ones: see Note [Sampled arrays]."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay._core import METRICS, Pool
from forebay.interop import numpy
from forebay.runtime.allocator.statistics import FIELDS, KINDS
from forebay.runtime.history import memory_snapshot
from forebay.runtime.history.recording import first_frames_outside

if TYPE_CHECKING:
    from forebay.records.model import Snapshot

__all__ = ["MEAN", "sampled_pool", "snapshot", "start"]

MEAN = 512 * 1024  # bytes between two chosen ones: the standard error of 50 MiB is 10 %
_DEPTH = 256  # frames of a stack


class _Sample:
    """The sample of this process."""

    pool: Pool | None = None
    mean = 0
    seed = 0


_sample = _Sample()


def start(entries: int, *, mean: int = MEAN, seed: int | None = None) -> None:
    """Sample the arrays that are not allocated on the device, anew. Without effect before `numpy.install`.

    Parameters
    ----------
    entries : int
        Entries kept in the history of the sample.
    mean : int, default 524288
        Bytes of arrays for each chosen one, on average.
    seed : int, optional
        Choose the same arrays as another run with this seed; a random number by default.

    Raises
    ------
    ValueError
        If `mean` is less than 1, or `seed` is not a number of 64 bits.
    """
    if not 1 <= mean < 1 << 60:
        raise ValueError(f"mean must be from 1 to 2^60 bytes, not {mean}")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be a number of 64 bits, not {seed}")
    hook = numpy.newest_hook()
    if hook is None:
        return
    pool = Pool()
    pool.record_history(entries, _DEPTH, stacks=True, outside=first_frames_outside("python"))
    _sample.pool, _sample.mean = pool, mean
    _sample.seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
    hook.sample(pool, mean, _sample.seed)


def sampled_pool() -> Pool | None:
    """Return the pool whose blocks are the sampled arrays; None before `start`."""
    return _sample.pool


def snapshot(name: str, notes: Mapping[str, Any] | None = None) -> Snapshot | None:
    """Return the sample as a snapshot, with a note about how it was taken; None if no array was chosen.

    Parameters
    ----------
    name : str
        In place of the name of a device.
    notes : Mapping, optional
        Other notes.

    Returns
    -------
    Snapshot or None
        Each block is a chosen array; its size is the number of bytes that it stands for.
    """
    pool = _sample.pool
    if pool is None:
        return None
    rows = (f"{metric}.{kind}.{field}" for metric in METRICS for kind in KINDS for field in FIELDS)
    stats = dict(zip(rows, pool.counts(), strict=True))
    if not stats["allocation.all.allocated"]:
        return None
    exact = numpy.other_arrays().peak
    how = {"mean_bytes": _sample.mean, "seed": _sample.seed, "smaller_than_bytes": numpy.SMALLEST}
    sampled = {**how, "exact_peak_bytes": exact}
    return memory_snapshot.snapshot(pool, name, 0, stats=stats, notes={**(notes or {}), "sampled": sampled})
