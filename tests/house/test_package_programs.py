"""Programs over packages: each kind of difference between the CPU and an emulated device is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


@pytest.fixture
def compare(monkeypatch):
    """Compare a function on all devices; returns what is wrong, and the text."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    from packages.comparison import compare as compare_program
    from packages.program import Program

    yield lambda run, **options: compare_program(Program("a program", run, **options))
    for name in [name for name in sys.modules if name.partition(".")[0] == "packages"]:
        del sys.modules[name]


def square(place):
    return torch.full((100,), 3.0, device=place).square().mean()


def is_without_values():
    from forebay.interop.torch.devices import values

    return not values.is_computed()


def test_equal_program_has_no_problems(compare):
    assert compare(square) == ([], "loss 9, peak 1,024 bytes")


def test_other_loss_is_found(compare):
    problems, _ = compare(lambda place: square(place) + (place == "cuda"))
    assert problems == ["the loss is 10.0, and on the CPU 9.0"]
    assert compare(lambda place: square(place) + (place == "cuda"), on_gpu_only=True).problems == []


@pytest.mark.parametrize("on_gpu_only", [False, True])
def test_loss_that_is_no_number_is_found(compare, on_gpu_only):
    problems, _ = compare(
        lambda place: square(place) * (float("nan") if place == "cuda" else 1), on_gpu_only=on_gpu_only
    )
    assert problems == ["the loss is nan"]


def test_two_programs_of_one_name_are_refused(compare):
    from packages.program import add

    add("a name", square)
    with pytest.raises(ValueError, match="two programs 'a name'"):
        add("a name", square)


def test_other_peak_is_found(compare):
    def run(place):
        if place == "cuda" and is_without_values():
            torch.empty(1 << 20, device=place)
        return square(place)

    assert compare(run).problems == ["the peak is 1,024 bytes, and without values 4,194,304"]


def test_memory_that_stays_allocated_is_found(compare):
    kept = []

    def run(place):
        kept.append(torch.empty(100, device=place))
        return square(place)

    assert compare(run).problems == ["512 bytes stay allocated"] * 2


def test_reads_of_values_are_found_and_expected(compare):
    def run(place):
        return torch.full((1,), (torch.randn(1, device=place) * 0).item())

    (problem,) = compare(run).problems
    assert problem.startswith(".item() needs the values of a tensor")
    assert compare(run, reads_values="it says so") == ([], "peak 1,024 bytes with assumed values: it says so")
    assert compare(square, reads_values="it does not").problems == ["it was expected to need values"]
