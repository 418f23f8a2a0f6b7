"""Handles of streams for other libraries, and keywords. The scenes in tests/names/scenes have the rest."""

from __future__ import annotations

import ctypes

import pytest

from forebay import cuda

pytestmark = pytest.mark.usefixtures("emulated")


def test_stream_offers_its_handle_to_other_libraries():
    stream = cuda.Stream()
    assert stream.cuda_stream
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    assert isinstance(stream._as_parameter_, ctypes.c_void_p)
    assert stream._as_parameter_.value == stream.cuda_stream
    assert cuda.default_stream().__cuda_stream__() == (0, 0)


@pytest.mark.parametrize(
    ("named", "first"), [({"prority": -1}, "prority"), ({"stream_id": 0, "zebra": 1, "apple": 1}, "apple")]
)
def test_unknown_keyword_is_refused(named, first):
    with pytest.raises(TypeError, match=f"^'{first}' is an invalid keyword argument for this function$"):
        cuda.Stream(**named)
