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


def test_tensors_of_several_devices_are_served_one_by_one(emulated):
    for others in ("cuda:1", "cpu"):
        tensors = [torch.full((2,), 4.0, device="cuda"), torch.full((2,), 9.0, device=others)]
        results = [
            *torch._foreach_sqrt(tensors),
            *torch._foreach_add(tensors, 1),
            *torch._foreach_mul(tensors, tensors),
        ]
        assert [each.device for each in results] == [each.device for each in tensors] * 3
        assert [each[0].item() for each in results] == [2, 3, 5, 10, 16, 81]
        torch._foreach_mul_(tensors, 2)
        assert [each.tolist() for each in tensors] == [[8, 8], [18, 18]]
        torch._foreach_copy_([tensors[1]], [tensors[0]])
        assert tensors[1].tolist() == [8, 8]
