"""DataParallel and torch.cuda.comm between emulated devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.cuda import comm  # noqa: E402 -- as above


def test_data_parallel_is_the_module(emulated):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3).cuda()
    x = torch.randn(6, 4, device="cuda")
    expected = module(x)
    expected.sum().backward()
    gradient, module.weight.grad = module.weight.grad, None
    result = torch.nn.DataParallel(module)(x)
    result.sum().backward()
    assert result.device.index == 0
    assert torch.allclose(result, expected)
    assert torch.allclose(module.weight.grad, gradient)


def test_functions_of_comm(emulated):
    x = torch.arange(6.0, device="cuda")
    copies = comm.broadcast(x, [0, 1])
    assert [each.device.index for each in copies] == [0, 1]
    assert copies[1].tolist() == x.tolist()
    parts = comm.scatter(x, [0, 1], chunk_sizes=[2, 4])
    assert [each.tolist() for each in parts] == [[0, 1], [2, 3, 4, 5]]
    assert parts[1].device.index == 1
    assert comm.gather(parts, destination=1).device.index == 1
    assert comm.gather(parts).tolist() == x.tolist()
    assert comm.reduce_add([x, x.to("cuda:1")]).tolist() == [0, 2, 4, 6, 8, 10]


def test_small_tensors_are_copied_together(emulated):
    parameters = [torch.full((1,), float(at), device="cuda") for at in range(100)]
    other = torch.ones(3, device="cuda", dtype=torch.float16)
    torch.empty(1, device="cuda:1")
    before = [torch.cuda.memory_allocated(index) for index in range(2)]
    own, copies = comm.broadcast_coalesced([*parameters, other], (0, 1))
    assert [torch.cuda.memory_allocated(index) - before[index] for index in range(2)] == [0, 1024]
    assert own[0] is parameters[0]
    assert [each.item() for each in copies[:-1]] == [*range(100)]
    assert copies[-1].dtype == torch.float16
    assert copies[0].untyped_storage().data_ptr() == copies[1].untyped_storage().data_ptr()


def test_wrong_arguments_of_comm_are_refused(emulated):
    x = torch.ones(4, 4, device="cuda")
    host = torch.ones(4, 4)
    for call, text in (
        (lambda: comm.broadcast_coalesced([x], ()), "Expected at least one device to broadcast to"),
        (lambda: comm.broadcast_coalesced([x], (1, 0)), r"All tensors must be on devices\[0\]: 1"),
        (lambda: comm.broadcast(x, out=(host,)), "output tensor at index 0 has device 'cpu'"),
        (lambda: comm.broadcast(x, out=(x[0],)), r"output tensor at index 0 has shape \[4\]"),
        (lambda: comm.scatter(x, ()), "Expected at least one device to scatter to"),
        (lambda: comm.scatter(x, (0, 1), chunk_sizes=(1, 1)), "to sum exactly to 4"),
        (lambda: comm.scatter(x, (0, 1), chunk_sizes=(4,)), r"len\(devices\) = 2 and len\(chunk_sizes\) = 1"),
        (lambda: comm.scatter(x, out=()), "Expected at least one output tensor to scatter to"),
        (lambda: comm.scatter(x, out=(x[:1], x[:1])), "Expected 4, but got total size 2"),
        (lambda: comm.scatter(x, out=(x[:, :1],)), "Output tensor at index 0 has incorrect shape"),
        (lambda: comm.scatter(x, (0, 1), streams=[torch.cuda.Stream(1)]), "Expected the device associated with"),
        (lambda: comm.gather(()), "Expected at least one tensor to gather from"),
        (lambda: comm.gather((x, host)), "tensor at index 1 has device 'cpu'"),
        (lambda: comm.gather((x, x[0])), "the same number of dimensions"),
        (lambda: comm.gather((x, x[:, :1])), r"Tensor at index 1 has invalid shape \[4, 1\]"),
        (lambda: comm.gather((x, x), out=x), r"Expected out tensor to have shape \[8, 4\]"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
