"""PyTorch snapshots: the pickled dicts and lists of `torch.cuda.memory._snapshot()`, read in three passes.

Versions 1.13 to 2.15 are supported. See Note [Snapshots are read in three passes].
"""

from __future__ import annotations

import io
from typing import Any

from forebay.records.model import Snapshot
from forebay.snapshot.formats.budget import Budget
from forebay.snapshot.formats.byte_source import ByteSource
from forebay.snapshot.formats.torch_columns import snapshot_of
from forebay.snapshot.formats.torch_decode import Decoded, Odd, decode_stream, decode_values
from forebay.snapshot.formats.torch_validate import checked_devices

__all__ = ["parse", "read", "snapshots"]


def parse(data: bytes) -> tuple[Snapshot, ...]:
    """Parse the snapshots in an untrusted pickle. Raises BadSnapshot."""
    return read(ByteSource(io.BytesIO(data)))


def read(source: ByteSource) -> tuple[Snapshot, ...]:
    """Read the snapshots in an untrusted file with a pickle. Raises BadSnapshot.

    What PyTorch writes becomes columns while it is read; any other pickle of plain values is unpickled as a whole. If
    the file is truncated, the note "truncated" states it.
    """
    try:
        return _converted(decode_stream(source))
    except Odd:
        source.rewind()
        return _converted(decode_values(source))


def snapshots(value: Any, budget: Budget | None = None) -> tuple[Snapshot, ...]:
    """Convert an unpickled value to one snapshot for each device, by index. Raises BadSnapshot for another schema.

    Pinned memory follows as the device "pinned". `budget` limits the memory; by default it is unlimited.
    """
    return _converted(Decoded(value, budget or Budget()))


def _converted(decoded: Decoded) -> tuple[Snapshot, ...]:
    return tuple(map(snapshot_of, checked_devices(decoded)))
