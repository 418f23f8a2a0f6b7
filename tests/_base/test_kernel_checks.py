"""Checks of kernels, merged and in words."""

from __future__ import annotations

from forebay._base.kernel_checks import KernelCheck, merged

SMALL = KernelCheck("add", "program.py:3", "sm_90", 1, 0, 232448, 20, 0)
LARGE = KernelCheck("product", "program.py:9", "sm_89", 4, 147456, 101376, 168, 4552)


def test_kernel_within_the_limits_has_no_findings():
    assert not SMALL.has_findings
    assert [*SMALL.sentences()] == ["sm_90: 1 warp, 0 B of shared memory, 20 registers a thread"]
    assert [*SMALL._replace(registers=None, spilled=None).sentences()] == ["sm_90: 1 warp, 0 B of shared memory"]


def test_findings_are_what_is_too_large_spilled_or_outside():
    assert LARGE.is_too_large
    assert [*LARGE._replace(outside=("reads outside a tensor",)).sentences()] == [
        "sm_89: 4 warps, 144.00 KiB of shared memory, 168 registers a thread",
        "does not fit: the card has 99.00 KiB of shared memory for a program",
        "spills 4,552 bytes a thread to memory: use more warps, or smaller blocks",
        "reads outside a tensor",
    ]
    assert LARGE.as_json()["too_large"]


def test_kernels_of_several_processes_are_merged_with_findings_first():
    outside = [SMALL._replace(outside=(each,)) for each in ("first", "second", "first")]
    assert merged([SMALL, LARGE, LARGE]) == (LARGE, SMALL)
    assert merged([LARGE._replace(kernel="other", shared=0, spilled=0), *outside])[0].outside == ("first", "second")
