"""PyTorch's names and numbers of types."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.runtime.base import torch_types


@pytest.mark.parametrize(("kind", "number"), [("cpu", 0), ("cuda", 1), ("mps", 13), ("mtia", 19)])
def test_device_types_have_the_numbers_of_pytorch(kind, number):
    assert torch_types.device_type(kind) == number
    assert torch_types.kind_of_type(number) == kind


@pytest.mark.parametrize("number", [2, 20, 99, -1])
def test_number_without_a_kind_is_refused(number):
    with pytest.raises(RuntimeError, match=rf"^Unknown device: {number}\. If you have recently updated"):
        torch_types.kind_of_type(number)


def test_kind_unknown_to_pytorch_is_private():
    assert torch_types.device_type("fake") == 20


def test_names_of_types():
    assert torch_types.torch_type(np.dtype("f4")).name == "Float"
    assert torch_types.named_type("Float") == "float32"
    assert torch_types.named_type("Quad") == ""
    for foreign in (np.dtype(">f4"), np.dtype("U3")):
        assert torch_types.torch_name(foreign) == ""
        assert torch_types.torch_type(foreign).name == str(foreign)
