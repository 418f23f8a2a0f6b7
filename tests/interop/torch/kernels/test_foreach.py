"""Operators on lists of tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


def test_scalars_of_lists_are_in_a_tensor_of_the_cpu(emulated):
    ones = [torch.ones(2, device="cuda"), torch.ones(1, device="cuda")]
    made = torch._foreach_addcdiv(ones, ones, ones, torch.tensor([1.0, 2.0]))
    assert [each.tolist() for each in made] == [[2, 2], [3]]
    torch._foreach_addcmul_(ones, ones, ones, torch.tensor([1.0, 2.0]))
    assert [each.tolist() for each in ones] == [[2, 2], [3]]
    with pytest.raises(RuntimeError, match="Expected scalars to be on CPU, got cuda:0 instead"):
        torch._foreach_addcdiv(ones, ones, ones, torch.ones(2, device="cuda"))
