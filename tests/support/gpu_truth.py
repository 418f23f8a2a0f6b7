"""Records of GPUs (tests/data/gpu-truth), and the comparison of their workloads with what forebay predicts.

A prediction runs the workload that was measured (tools/gpu/workloads) without values on an emulated device with the
properties of the recorded card. With the PyTorch of the record, sizes in order and peaks must be equal. Another version
may allocate other temporary memory, and its modules may be written differently: the peaks of its phases may then differ
by `OTHER_VERSION`, and sizes are not compared.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from forebay import backends, profiles
from forebay.interop.torch.devices.patching import patch
from forebay.runtime.lifecycle.emulation import Emulation

TESTS = Path(__file__).resolve().parents[1]
RECORDS = TESTS / "data" / "gpu-truth"
TOOLS = TESTS.parent / "tools"
SHOWN = 5  # differences between sequences


class Tolerance(NamedTuple):
    """Permitted differences of the peaks, relative and in bytes."""

    allocated: float
    reserved: float
    nbytes: int = 0


EQUAL = Tolerance(0.0, 0.0)
OTHER_VERSION = Tolerance(0.02, 0.05, 20 << 20)  # one segment of the usual size more or less


def import_workloads() -> None:
    """Make the modules of tools/gpu importable."""
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))


def records() -> dict[str, dict]:
    """Return all records by the name of their file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}


def public(version: str) -> str:
    """Return a version without its build."""
    return version.partition("+")[0]


@contextmanager
def emulated_card(card: dict):
    """Emulate a card of the recorded properties, for PyTorch without values."""
    name = next((each for each in profiles.names("cuda") if _is_of(profiles.load(each), card)), "h100")
    driver = backends.emulated_driver("cuda", 1, name, card["total_memory"])
    known = {key: value for key, value in card.items() if key in driver.profile.properties}
    driver.profile = replace(driver.profile, properties=MappingProxyType({**driver.profile.properties, **known}))
    with Emulation("cuda", driver), patch("shapes"):
        yield


def _is_of(profile, card: dict) -> bool:
    return profile.properties["name"] == card["name"]


def predicted(workload, card: dict, version: str = "") -> dict:
    """Return the measurements of a workload on an emulated card.

    Parameters
    ----------
    workload : gpu.workloads.workload.Workload
        The workload.
    card : dict
        The properties of the card.
    version : str, optional
        The version of PyTorch whose rule for the workspaces of cuBLAS is followed, by default the installed one.
    """
    from gpu.workloads.recording import record
    from gpu.workloads.workload import Setting

    from forebay.interop.torch.kernels import workspaces

    workspaces.set_lifetime(_lifetime(version) if version else None)
    try:
        with emulated_card(card):
            return record(workload, Setting("cuda"), values=False)
    finally:
        workspaces.set_lifetime(None)


def _lifetime(version: str):
    """Return how long that version keeps workspaces; see forebay.interop.torch.kernels.workspaces."""
    return "process" if tuple(map(int, version.split(".")[:2])) < (2, 15) else "call"


def differences(measured: dict, found: dict, tolerance: Tolerance) -> list[str]:
    """Return a line for each difference of a prediction from a measurement that is not permitted."""
    lines = []
    names = [each["name"] for each in measured["phases"]]
    if names != [each["name"] for each in found["phases"]]:
        return [f"the phases are {[each['name'] for each in found['phases']]}, measured {names}"]
    if tolerance == EQUAL:
        for name in names:
            lines += _of_sizes(name, sizes_of(measured, name), sizes_of(found, name))
    for one, other in zip(measured["phases"], found["phases"], strict=True):
        for key, relative in (("peak_allocated", tolerance.allocated), ("peak_reserved", tolerance.reserved)):
            lines += _of_peaks(f"{one['name']}, {key}", one[key], other[key], relative, tolerance.nbytes)
    for key, relative in (("peak_allocated", tolerance.allocated), ("peak_reserved", tolerance.reserved)):
        lines += _of_peaks(key, measured[key], found[key], relative, tolerance.nbytes)
    return lines


def sizes_of(row: dict, name: str) -> list[int]:
    """Return the sizes that a phase allocated, in order."""
    from gpu.workloads.sequences import decoded

    phase = next(each for each in row["phases"] if each["name"] == name)
    return decoded(phase["sizes"]) if "sizes" in phase else sizes_of(row, phase["sizes_of"])


def _of_peaks(name: str, measured: int, found: int, relative: float, nbytes: int) -> list[str]:
    if abs(found - measured) <= max(relative * measured, nbytes):
        return []
    ratio = f" ({found / measured - 1:+.2%})" if measured else ""
    return [f"{name}: predicted {found:,} bytes, measured {measured:,}{ratio}"]


def _of_sizes(name: str, measured: list[int], found: list[int]) -> list[str]:
    if measured == found:
        return []
    at = next(
        (at for at, (one, other) in enumerate(zip(measured, found, strict=False)) if one != other),
        min(len(measured), len(found)),
    )
    here, there = (f"{each[at : at + SHOWN]} of {len(each):,}" for each in (found, measured))
    return [f"{name}: allocation {at} differs: predicted {here}, measured {there}"]
