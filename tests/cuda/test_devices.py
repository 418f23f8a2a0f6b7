"""Order of effects and of errors where functions take a short path for the current device."""

from __future__ import annotations

import pytest

import forebay
from forebay import cuda

pytestmark = pytest.mark.usefixtures("clean")


@pytest.mark.parametrize("index", [-1, None])
def test_context_that_selects_no_device_restores_none(index):
    with forebay.emulate("cuda", count=2):
        cuda.set_device(0)
        with cuda.device(index) as context:
            assert context is None
            cuda.set_device(1)
        assert cuda.current_device() == (1 if index == -1 else 0)


def test_context_reports_the_device_that_it_left():
    with forebay.emulate("cuda", count=2):
        cuda.set_device(0)
        context = cuda.device(1)
        with context:
            assert cuda.current_device() == 1
        assert (context.idx, context.prev_idx, cuda.current_device()) == (1, 0, 0)


def test_error_of_the_device_comes_before_that_of_the_stream():
    with forebay.emulate("cuda"):
        with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
            cuda.caching_allocator_alloc(10, "cpu", "x")
        with pytest.raises(TypeError, match="Invalid type for stream argument"):
            cuda.caching_allocator_alloc(10, 0, "x")


def test_open_device_is_found_by_each_spelling():
    with forebay.emulate("cuda", count=2):
        stream = cuda.current_stream(1)
        for spelling in (1, "cuda:1", forebay.device("cuda", 1)):
            assert cuda.current_stream(spelling) == stream
            assert cuda.memory_allocated(spelling) == 0
        with pytest.raises(ValueError, match="Expected a cuda device"):
            cuda.current_stream("cpu")
    with forebay.emulate("cuda", count=1), pytest.raises(RuntimeError):
        cuda.current_stream(1)  # of the emulation that has ended
