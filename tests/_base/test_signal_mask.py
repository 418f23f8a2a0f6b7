"""Signal masks of threads that the library starts."""

from __future__ import annotations

import signal
import threading

import pytest

from forebay._base.signal_mask import signals_blocked


def current_mask() -> set[signal.Signals | int]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_thread_gets_no_signals_but_those_of_faults():
    found = []
    before = current_mask()
    with signals_blocked():
        thread = threading.Thread(target=lambda: found.append(current_mask()))
        thread.start()
    thread.join(10)
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD} <= found[0]
    assert not {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT} & found[0]
    assert current_mask() == before


def test_mask_is_restored_after_an_exception():
    before = current_mask()
    with pytest.raises(KeyError), signals_blocked():
        raise KeyError
    assert current_mask() == before


def test_mask_is_restored_if_a_handler_raises_while_it_is_set(monkeypatch):
    """Setting a mask runs the handlers of signals that have arrived."""
    set_mask, before = signal.pthread_sigmask, current_mask()

    def interrupted(how, signals):
        result = set_mask(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt), signals_blocked():
        pytest.fail("the block is not entered")
    assert current_mask() == before
