"""The registry of the timers of DistributedDataParallel's reducer, which PyTorch's CUDA build extends."""

from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay.interop.torch.devices import reducer_timers  # noqa: E402 -- after PyTorch, as above


def functions():
    return {kind: tuple(creator) for kind, creator in reducer_timers._creators().items()}


def test_the_timer_of_the_cpu_replaces_that_of_cuda_until_the_end():
    before = functions()
    with ExitStack() as undo:
        reducer_timers.replace_reducer_timers(undo)
        during = functions()
        assert during.keys() == before.keys()
        assert set(during.values()) == {before[reducer_timers._CPU]}
    assert functions() == before


def test_builds_register_the_timers_of_their_devices():
    expected = {reducer_timers._CPU, reducer_timers._CUDA} if torch.version.cuda else {reducer_timers._CPU}
    assert functions().keys() == expected


def test_another_build_is_left_alone(monkeypatch):
    monkeypatch.setattr(reducer_timers, "_REGISTRY", "no_such_function")
    with ExitStack() as undo:
        reducer_timers.replace_reducer_timers(undo)
    assert not functions()


def test_a_table_of_another_structure_is_left_alone(monkeypatch):
    monkeypatch.setattr(reducer_timers, "_MOST_ENTRIES", 1)
    assert not functions()
