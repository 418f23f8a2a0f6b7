"""Allocation sites of the devices in `forebay top`, of the stacks that their processes send."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, SiteFigures
from forebay.observe.monitor.live_stacks import LiveStacks
from forebay.observe.monitor.machine import MachineFigures
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice
from forebay.records.sites import find_sites, heavy_sites, with_split
from forebay.snapshot.analysis.summary import library_lines

__all__ = ["as_json", "with_sites"]

_SITES = 50


def with_sites(found: MachineFigures, choice: SiteChoice = DEFAULT_CHOICE) -> MachineFigures:
    """Return the figures with the sites of the stacks, instead of the stacks."""
    processes, failures = [], dict(found.failures)
    for process in found.processes:
        try:
            processes.append(_of_process(process, choice))
        except ValueError as error:
            failures[process.pid] = f"its figures cannot be read: {error}"
    return replace(found, processes=tuple(processes), failures=failures)


def as_json(found: MachineFigures) -> dict[str, Any]:
    """Return the figures as values that `json.dumps` accepts."""
    data = asdict(found)
    for process in data["processes"]:
        for device in process["devices"]:
            del device["stacks"]
    return data


def _of_process(process: ProcessFigures, choice: SiteChoice) -> ProcessFigures:
    devices = [replace(each, sites=_sites(each, choice), stacks=LiveStacks()) for each in process.devices]
    return replace(process, devices=tuple(devices))


def _sites(device: DeviceFigures, choice: SiteChoice) -> tuple[SiteFigures, ...]:
    snapshot, live = device.stacks.snapshot(device.device, choice)
    stack, nbytes, blocks = live.T
    if not len(live):
        return ()
    snapshot = with_split(snapshot, heavy_sites(snapshot, stack, nbytes))
    found = find_sites(snapshot)
    site = found.of_stack[stack]
    total, count = np.zeros((2, len(found.frames)), np.int64)
    np.add.at(total, site, nbytes)
    np.add.at(count, site, blocks)
    lines = library_lines(snapshot, site, found.called[stack], nbytes)
    sites = [
        SiteFigures(found.labels[at], int(total[at]), int(count[at]), lines.get(at, ""))
        for at in np.argsort(-total, kind="stable").tolist()
        if count[at]
    ]
    if device.stacks.other_blocks:
        sites.append(SiteFigures("(other stacks)", device.stacks.other_bytes, device.stacks.other_blocks))
    return tuple(sites[:_SITES])
