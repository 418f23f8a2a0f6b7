"""Devices that programs use without PyTorch."""

from __future__ import annotations

import pytest
from support.recorded_programs import sections

from forebay._base.verdicts import Verdict

GIB = 1 << 30

OWN = sections("""
    = program
    x = forebay.zeros(1 << 28, device="cuda")
    = process that it starts
    subprocess.run(python('import forebay; x = forebay.zeros(1 << 28, device="cuda")'), check=True)
    = forked child of a program that used the device
    x = forebay.zeros(1 << 28, device="cuda")
    child = os.fork()
    if child:
        os.waitpid(child, 0)
""")


@pytest.mark.parametrize("source", OWN.values(), ids=OWN)
def test_memory_of_devices_without_pytorch_counts_once(programs, monkeypatch, source):
    monkeypatch.setenv("FOREBAY_EMULATE", "cuda:1@rtx_4090")
    found = programs.run(f"import forebay\n{source}")
    assert programs.status == 0, programs.output
    (device,) = found.devices
    assert (device.events.allocated, device.is_exact) == (GIB, True)
    assert found.judge().verdict is Verdict.FITS


def test_memory_that_runs_out_without_pytorch_counts(programs, monkeypatch):
    monkeypatch.setenv("FOREBAY_EMULATE", "cuda:1@rtx_4090")
    source = """
        import forebay
        try:
            forebay.zeros(100 << 28, device="cuda")
        except forebay.OutOfMemory:
            x = forebay.zeros(1 << 28, device="cuda")
    """
    found = programs.run(source).judge()
    assert (found.text, found.reasons) == ("fits after 1 caught out-of-memory error", ())
    for path in programs.records.iterdir():
        path.unlink()
    assert programs.run(source.replace("except forebay.OutOfMemory", "finally")).judge().verdict is Verdict.DOES_NOT_FIT
