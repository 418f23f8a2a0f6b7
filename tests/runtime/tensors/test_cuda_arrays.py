"""`__cuda_array_interface__` where no GPU can use the memory."""

from __future__ import annotations

import numpy as np
import pytest

import forebay

pytestmark = pytest.mark.usefixtures("clean")


class Array:
    """An array of another library on a GPU."""

    def __init__(self):
        self.__cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (0x1000, False), "version": 2}


@pytest.mark.parametrize("factory", [forebay.tensor, forebay.as_tensor])
def test_arrays_of_a_gpu_are_rejected_on_emulated_devices(factory):
    with forebay.emulate("cuda"), pytest.raises(RuntimeError, match="cannot be used: cuda:0 is emulated"):
        factory(Array())


def test_arrays_of_a_gpu_are_rejected_without_a_device():
    if forebay.device_count("cuda"):
        pytest.skip("there is a CUDA device")
    with pytest.raises(RuntimeError, match="the memory cannot be used"):
        forebay.as_tensor(Array(), device="cpu")


def test_emulated_tensors_have_no_interface():
    with forebay.emulate("cuda"):
        made = forebay.zeros(2, device="cuda")
        assert not hasattr(made, "__cuda_array_interface__")
        with pytest.raises(AttributeError, match=r"on non-CUDA tensor type: forebay\.cuda\.FloatTensor If CUDA data"):
            made.__cuda_array_interface__  # noqa: B018 -- the property raises


def test_interface_that_is_not_a_dict_is_rejected():
    class Bad:
        __cuda_array_interface__ = 3

    with pytest.raises(TypeError, match="`__cuda_array_interface__` must be a dict"):
        forebay.as_tensor(Bad())
    assert forebay.as_tensor(np.ones(2)).tolist() == [1, 1]
