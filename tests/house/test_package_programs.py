"""Programs over packages: each kind of difference between the CPU and an emulated device is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


@pytest.fixture
def compare(monkeypatch):
    """Compare a function on all devices; returns what is wrong with values, without, and the peaks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    from packages.comparison import compare as compare_program
    from packages.program import Program

    yield lambda run, **options: compare_program(Program("a program", run, **options))[3:6]
    for name in [name for name in sys.modules if name.partition(".")[0] == "packages"]:
        del sys.modules[name]


def square(place):
    return torch.full((100,), 3.0, device=place).square().mean()


def is_without_values():
    from forebay.interop.torch.devices import values

    return not values.is_computed()


def test_equal_program_has_no_problems(compare):
    assert compare(square) == ("", "", (1024, 1024))


def test_other_loss_is_found(compare):
    found = compare(lambda place: square(place) + (place == "cuda"))
    assert found == ("the loss is 10.0, and on the CPU 9.0", "", (1024, 1024))
    assert compare(lambda place: square(place) + (place == "cuda"), on_gpu_only=True)[:2] == ("", "")


@pytest.mark.parametrize("on_gpu_only", [False, True])
def test_loss_that_is_no_number_is_found(compare, on_gpu_only):
    with_values, without, _ = compare(
        lambda place: square(place) * (float("nan") if place == "cuda" else 1), on_gpu_only=on_gpu_only
    )
    assert (with_values, without) == ("the loss is nan", "")


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

    assert compare(run) == ("", "the peak is 4,194,304 bytes, and with values 1,024", (1024, 4194304))


def test_memory_that_stays_allocated_is_found(compare):
    kept = []

    def run(place):
        kept.append(torch.empty(100, device=place))
        return square(place)

    assert compare(run)[:2] == ("512 bytes stay allocated", "512 bytes stay allocated")


def test_error_of_a_program_is_found_in_the_mode_that_has_it(compare):
    def run(place):
        if place == "cuda" and not is_without_values():
            raise RuntimeError("a kernel is missing")
        return square(place)

    assert compare(run) == ("RuntimeError('a kernel is missing')", "", (0, 1024))


def test_reads_of_values_are_found_and_expected(compare):
    def run(place):
        return torch.full((1,), (torch.randn(1, device=place) * 0).item())

    with_values, without, _ = compare(run)
    assert with_values == ""
    assert without.startswith(".item() needs the values of a tensor")
    assert compare(run, reads_values="it says so") == ("", "", (1024, 1024))
    assert compare(square, reads_values="it does not")[1] == "it was expected to need values"
