"""PyTorch under `forebay run --emulate cuda`: it uses the emulated devices, and the report says what held the peak."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.interop.torch.attribution import PeakUse
    from forebay.snapshot.model import Snapshot
    from forebay.snapshot.replay.remedies import Remedies

_MOST_ENTRIES = 400_000  # of a history that is replayed with other settings, which takes about ten seconds
_SESSION = "forebay.interop.torch.session"


@dataclass(frozen=True, slots=True)
class TorchResult:
    """The result of one device: what held its peak, and replays of its history with other settings."""

    use: PeakUse
    remedies: Remedies | None
    has_sites: bool  # the report of the device has the lines already

    def as_json(self) -> dict[str, Any]:
        from forebay.interop.torch.attribution.text import for_pytorch

        helpful = () if self.remedies is None else self.remedies.helpful
        settings = [
            {"environment": for_pytorch(each.environment), "peak_reserved": each.outcome.peak_reserved}
            for each in helpful
        ]
        return {**self.use.as_json(), "helpful_settings": settings}


def install(mode: str) -> None:
    """Let PyTorch use the emulated devices once the program or a process that it starts imports it."""
    from forebay.interop.torch import on_import

    on_import.set_environment(mode)
    on_import.install()


def is_running() -> bool:
    """Return True if the program has imported PyTorch."""
    session = sys.modules.get(_SESSION)
    return session is not None and session.running() is not None


def results(snapshots: list[Snapshot]) -> list[TorchResult]:
    """Return the result of each device that PyTorch used."""
    if not is_running():
        return []
    session: Any = sys.modules[_SESSION]
    by_device = {each.device: each for each in snapshots}
    found = []
    for use in session.running().results():
        snapshot = by_device.get(f"cuda:{use.index}")
        found.append(TorchResult(use, _remedies(snapshot), snapshot is not None and len(snapshot.trace) > 0))
    return found


def _remedies(snapshot: Snapshot | None) -> Remedies | None:
    from forebay.errors import Unsupported
    from forebay.snapshot.replay.remedies import find_remedies

    if snapshot is None or snapshot.lost or not 0 < len(snapshot.trace) <= _MOST_ENTRIES:
        return None
    try:
        return find_remedies(snapshot)
    except Unsupported:
        return None


def print_results(console: Console, found: list[TorchResult]) -> None:
    """Print the results, one below the other."""
    if not found:
        return
    from forebay.interop.torch.attribution.text import paragraphs
    from forebay.snapshot.report.paragraph_rich import print_paragraphs

    for each in found:
        print_paragraphs(
            console, paragraphs(each.use, each.remedies, lines=not each.has_sites), alarm=not each.use.fits
        )


def write_pickle(snapshots: list[Snapshot], path: Path) -> None:
    """Write the snapshots of the CUDA devices in PyTorch's format, for its viewer."""
    from forebay.snapshot.formats import torch_writer

    torch_writer.write([each for each in snapshots if each.device.startswith("cuda")], path)
