"""Errors of driver calls that the software driver does not return."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest
from support.software_driver import header

from forebay.backends.nvidia import calls
from forebay.errors import DeviceError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cuda-bindings is installed for Linux")


class Code(int):
    """A result code that is known up to 999, as those of `cuda.bindings.driver.CUresult`."""

    def __init__(self, number: int) -> None:
        if number > 999:
            raise ValueError(f"{number} is not a valid CUresult")


@pytest.fixture
def bindings(monkeypatch):
    """Replace cuda-bindings."""

    def lacking() -> None:
        raise RuntimeError('Function "cuNew" not found')

    made = SimpleNamespace(CUresult=Code, cuGetErrorName=lambda code: (0, b"CUDA_ERROR_NAMED"), cuNew=lacking)
    monkeypatch.setattr(calls, "driver_api", lambda: made)


def test_code_of_a_newer_driver_is_shown_as_a_number(bindings):
    (newer,), (named,) = (calls.error_of(code, "cuNew").__notes__ for code in (1234, 700))
    assert newer == "cuNew returned CUDA_ERROR_1234 (1234)"
    assert named == "cuNew returned CUDA_ERROR_NAMED (700); the device accepts no more work in this process"


def test_function_that_the_driver_lacks_is_reported(bindings):
    with pytest.raises(DeviceError, match=r'^cuda:1: Function "cuNew" not found$') as caught:
        calls.call("cuNew", device="cuda:1")
    assert caught.value.call == "cuNew"


def test_codes_that_end_a_process_are_those_of_nvidias_header():
    text = header("cuda.h").read_text()
    comments = re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*CUDA_ERROR_\w+\s*=\s*(\d+)", text, re.DOTALL)
    sentences = {int(code): " ".join(comment.replace("*", " ").split()) for comment, code in comments}
    fatal = {code for code, sentence in sentences.items() if "the process must be terminated" in sentence}
    assert 721 in fatal
    # Of these the header states that the memory is invalid, or that an error cannot be corrected.
    assert calls.FATAL - fatal == {214, 220, 710}
    assert fatal <= calls.FATAL
