"""`forebay run` and signals that end a program."""

from __future__ import annotations

import signal

import pytest

WAITS = {signal.SIGTERM: "while True: pass", signal.SIGHUP: "time.sleep(1000)"}


@pytest.fixture(autouse=True)
def default_actions():
    """Programs of the tests begin with the system's actions, also where the suite runs under nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in WAITS}
    yield
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.parametrize("number", WAITS)
def test_signal_ends_the_program_with_a_report(runner, number):
    """Also if it arrives in a sleep."""
    observed = runner.forebay(
        f"""
        import os, signal, subprocess, time
        import numpy as np
        kept = np.ones(1 << 20)
        assert signal.getsignal({int(number)}) is signal.SIG_DFL
        subprocess.Popen(["sh", "-c", f"kill -{int(number)} {{os.getpid()}}"])
        {WAITS[number]}
        """
    )
    assert observed.status == -number
    assert "Memory of cpu" in observed.err
    assert observed.snapshot.stats["allocated_bytes.all.peak"] == 8 << 20


def test_signal_that_the_program_handles_is_its_own(runner):
    observed = runner.same(
        """
        import os, signal, sys
        print(signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)), signal.signal(signal.SIGHUP, signal.SIG_IGN))
        os.kill(os.getpid(), signal.SIGHUP)
        print("continues")
        os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    assert (observed.output / "report.html").exists()


def test_signal_in_the_report_ends_the_program_behind_it(runner):
    observed = runner.forebay(
        """
        import os, signal
        import forebay.snapshot.report.html as html
        write = html.write_several
        def write_several(*args, **keywords):
            signal.raise_signal(signal.SIGTERM)
            write(*args, **keywords)
        html.write_several = write_several
        """
    )
    assert observed.status == -signal.SIGTERM
    assert (observed.output / "report.html").exists()


def test_signal_at_the_begin_of_a_forked_child_ends_it(runner):
    """multiprocessing.Pool sends SIGTERM to workers at its end, which may be soon after their fork."""
    observed = runner.forebay(
        """
        import os, signal
        from forebay.commands import run_resident
        begin = run_resident.begin
        def begin_and_signal():
            begin()
            os.kill(os.getpid(), signal.SIGTERM)
        run_resident.begin = begin_and_signal
        child = os.fork()
        if not child:
            os._exit(7)
        print(os.waitpid(child, 0)[1] == signal.SIGTERM)
        """
    )
    assert (observed.status, observed.out) == (0, "True\n"), observed.err
    assert "Memory of cpu" in observed.err
