"""Errors of wrong arguments where only shapes are computed: their texts are those of the CPU and CUDA."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from support.wrong_calls import TEXTS, ones, zeros  # noqa: E402 -- after the check

from forebay.interop.torch.kernels.host_errors import host_error  # noqa: E402 -- as above

pytestmark = pytest.mark.usefixtures("shapes_only")


@pytest.mark.parametrize(("function", "text"), TEXTS)
def test_errors_have_the_texts_of_the_host(function, text):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        function()
    assert text in str(caught.value)


def test_classes_are_those_of_the_host():
    with pytest.raises(IndexError, match="tensors used as indices must be long, int, byte or bool tensors"):
        ones(5)[ones(2)]
    with pytest.raises(
        IndexError, match="shape mismatch: indexing tensors could not be broadcast together with shapes"
    ):
        ones(5, 5)[zeros(2), zeros(3)]
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 2"):
        ones(2, 3)[5]


def test_large_tensors_take_no_memory_of_the_host(host_bytes):
    wide = torch.empty(1 << 14, 1 << 13, device="cuda")
    before = host_bytes()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        wide @ wide
    with pytest.raises(RuntimeError, match="output with shape"):
        wide.add_(wide[None, :1].expand(3, 1, 1 << 13))
    assert host_bytes() - before < 64 << 20


@pytest.fixture
def host_bytes():
    """Return the resident memory of the process."""

    def read():
        with open("/proc/self/statm") as file:  # noqa: PTH123 -- a file of the system
            return int(file.read().split()[1]) * 4096

    return read


def test_host_tensor_that_a_refused_call_would_write_is_unchanged():
    """The repetition on the CPU may succeed, as it has other tensors."""
    target = torch.ones(3)

    def call(args, keywords):
        args[0].fill_(7)

    assert host_error(call, [target], {}, [target]) is None
    assert target.tolist() == [1, 1, 1]
