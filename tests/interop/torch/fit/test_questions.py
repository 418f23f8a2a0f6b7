"""will_it_fit() and sweep(): small functions on small emulated cards, in processes of their own."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay._base.verdicts import Verdict
from forebay.errors import ForebayError, WrongState
from forebay.interop.torch import sweep, will_it_fit
from forebay.interop.torch.fit.tasks import IN_WORKER

MIB = 1 << 20
LIMIT = 120  # seconds of a run, which takes about five


def train(mib):
    import torch

    weight = torch.ones(mib << 18, device="cuda", requires_grad=True)
    weight.exp().sum().backward()


def fragment():
    import torch

    def take(mib):
        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

    held = take(40)
    del held
    small = take(2)
    take(60)
    del small


def test_sweep_finds_the_largest_size_that_fits_each_card():
    found = sweep(train, {"mib": [8, 40]}, ["rtx_4090", "h100"], memory="64MiB", timeout=LIMIT)
    assert [each.verdict for each in found] == ["fits", "fits", "does not fit", "does not fit"]
    assert found.largest("mib") == {"rtx_4090": 8, "h100": 8}
    first, last = found[0], found[-1]
    assert first.categories["parameters"] == first.categories["gradients"] == 8 * MIB
    assert first.peak_allocated == sum(first.categories.values())
    assert last.message.startswith("CUDA out of memory. Tried to allocate 40.00 MiB")
    assert last.capacity == 64 * MIB
    assert 3 * 40 * MIB <= last.needed < 4 * 40 * MIB
    assert last.settings == ()
    assert "does not fit" in repr(found).splitlines()[3]


def test_need_with_values_is_that_of_a_run_without():
    (found,) = sweep(train, {"mib": [40]}, ["h100"], memory="64MiB", mode="compute", timeout=LIMIT)
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert 3 * 40 * MIB <= found.needed < 4 * 40 * MIB


def test_settings_that_make_a_program_fit_are_proved_and_do_so():
    (found,) = will_it_fit(fragment, ["rtx_4090"], memory="96MiB", timeout=LIMIT)
    assert found.verdict is Verdict.FITS_WITH_OTHER_SETTINGS
    assert not found.fits
    assert found.settings[0] == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    (again,) = will_it_fit(
        fragment, ["rtx_4090"], memory="96MiB", settings="expandable_segments:True", timeout=LIMIT
    )  # fmt: skip
    assert again.fits


def test_error_of_the_function_is_the_message_with_an_executor():
    with ThreadPoolExecutor(1) as threads:
        (found,) = will_it_fit(lambda: 1 / 0, ["h100"], executor=threads, timeout=LIMIT)
    assert (found.verdict, found.message) == ("did not finish", "ZeroDivisionError: division by zero")


def test_run_that_takes_too_long_is_an_error():
    (found,) = will_it_fit(train, ["h100"], timeout=0.01)
    assert (found.verdict, found.message) == ("did not finish", "the run took longer than 0.01 s")


def start_another(folder):
    import subprocess
    from pathlib import Path

    Path(folder, "pid").write_text(str(subprocess.Popen(["sleep", "90"]).pid))
    threading.Event().wait(90)


def test_run_that_takes_too_long_leaves_no_process(tmp_path):
    (found,) = will_it_fit(partial(start_another, str(tmp_path)), ["h100"], mode="compute", timeout=12)
    assert found.message == "the run took longer than 12 s"
    pid = (tmp_path / "pid").read_text()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end, "the process of the program lives on"
        time.sleep(0.05)


def test_wrong_arguments_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="no profile 'rtx_4091'"):
        will_it_fit(train, ["rtx_4091"])
    with pytest.raises(ValueError, match="profile of mps devices"):
        will_it_fit(train, ["apple_m4"])
    with pytest.raises(ForebayError, match="cannot be sent to another process"):
        will_it_fit(threading.Lock().acquire, ["h100"])
    monkeypatch.setenv(IN_WORKER, "1")
    with pytest.raises(WrongState, match="__main__"):
        will_it_fit(train, ["h100"])


def test_dask_workers_run_the_cards():
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        client.get_executor() as executor,
    ):
        found = sweep(train, {"mib": [4]}, ["t4", "h100"], executor=executor, timeout=LIMIT)
    assert [(each.profile, each.fits) for each in found] == [("t4", True), ("h100", True)]


def select():
    import torch

    numbers = torch.randn(1 << 20, device="cuda")
    print(numbers[numbers > 0].sum().item())


def test_choices_among_assumed_values_decide_the_peak():
    half, whole = (
        will_it_fit(select, ["t4"], assume_mask=share, check_assumptions=share < 1, timeout=LIMIT).results[0]
        for share in (0.25, 1.0)
    )
    assert half.peak_allocated < whole.peak_allocated
    assert half.choices.as_json() == {"mask": 0.25, "routing": "balanced"}
    assert half.assumption_check.depends
    assert whole.assumption_check is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assume_mask": 0.0}, "the share of masks must be above 0 and at most 1"),
        ({"assume_routing": "best"}, "the routing must be 'balanced' or 'worst'"),
        ({"mode": "compute", "check_assumptions": True}, "check_assumptions requires mode='shapes', not 'compute'"),
        ({"mode": "strict", "assume_routing": "worst"}, "assume_routing requires mode='shapes', not 'strict'"),
    ],
)
def test_impossible_choices_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        will_it_fit(select, ["t4"], **options)
