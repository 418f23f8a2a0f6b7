"""The kernel of any operator: on which devices its tensors may be, and composite operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- needs torch

TEXT = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and {}!"
REFUSED = {
    "second operand on the CPU": lambda here, host: here + host,
    "first operand on the CPU": lambda here, host: host + here,
    "matrix on the CPU": lambda here, host: host.expand(2, 2) @ here.expand(2, 2),
    "written tensor on the CPU": lambda here, host: host.add_(here),
    "written number on the CPU": lambda here, host: torch.tensor(1.0).mul_(here[0]),
    "written elements on the CPU": lambda here, host: host.index_put_((torch.tensor([0]),), here[:1]),
    "convolution of the CPU": lambda here, host: torch.conv1d(host.view(1, 1, 2), here.view(1, 1, 2)),
    "comparison with the CPU": lambda here, host: torch.equal(host, here),
    "index on the CPU": lambda here, host: here.gather(0, torch.tensor([1])),
}


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_the_cpu_are_refused_in_any_position(request, mode, name):
    request.getfixturevalue(mode)
    host = torch.zeros(2)
    with pytest.raises(RuntimeError) as caught:
        REFUSED[name](torch.ones(2, device="cuda"), host)
    assert str(caught.value) == TEXT.format("cpu")
    assert host.tolist() == [0, 0]


def test_numbers_of_another_gpu_are_refused_and_those_of_the_cpu_are_not(emulated):
    here = torch.ones(2, device="cuda")
    assert (torch.tensor(2.0) + here).tolist() == [3, 3]
    with pytest.raises(RuntimeError) as caught:
        here + torch.tensor(1.0, device="cuda:1")
    assert str(caught.value) == TEXT.format("cuda:1")


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
def test_indices_of_a_gpu_are_refused_elsewhere(request, mode, place):
    request.getfixturevalue(mode)
    text = f"indices should be either on cpu or on the same device as the indexed tensor ({place})"
    with pytest.raises(RuntimeError) as caught:
        torch.ones(3, device=place)[torch.tensor([0], device="cuda:0")]
    assert str(caught.value) == text


def test_lists_are_copied_to_the_cpu(emulated):
    host = [torch.zeros(2), torch.zeros(3)]
    torch._foreach_copy_(host, [torch.ones(2, device="cuda"), torch.ones(3, device="cuda")])
    assert [each.tolist() for each in host] == [[1, 1], [1, 1, 1]]


def test_lists_are_not_copied_to_the_cpu_without_values(shapes_only):
    with pytest.raises(DataDependent, match="a copy to the CPU needs the values"):
        torch._foreach_copy_([torch.zeros(2)], [torch.randn(2, device="cuda")])


@pytest.mark.parametrize("operator", [lambda x: torch.histogram(x, 3), lambda x: torch.histogramdd(x[:, None], [3])])
def test_operators_that_only_the_cpu_has_are_refused(emulated, operator):
    with pytest.raises(NotImplementedError, match=r"histogram.* with arguments from the 'CUDA' backend"):
        operator(torch.ones(4, device="cuda"))


def test_composite_operators_with_a_cuda_kernel(emulated):
    """The CUDA build of PyTorch has kernels for them, which need a driver."""
    x = torch.arange(6.0, device="cuda")
    assert torch._chunk_cat([x, x], 0, 2).tolist() == torch._chunk_cat([x.cpu(), x.cpu()], 0, 2).tolist()
    parts = [torch.empty(2, device="cuda"), torch.empty(4, device="cuda")]
    torch.split_with_sizes_copy(x, [2, 4], out=parts)
    assert [each.tolist() for each in parts] == [[0, 1], [2, 3, 4, 5]]
