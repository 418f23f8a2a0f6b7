"""Tensors of emulated devices: operators, views, storages, copies, pinned memory."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch import nn  # noqa: E402 -- as above
from torch.utils import checkpoint  # noqa: E402 -- as above
from torch.utils import data as torch_data  # noqa: E402 -- as above

from forebay.errors import Unsupported  # noqa: E402 -- as above


def allocated():
    return torch.cuda.memory_allocated()


def matrix(*, requires_grad=True):
    return torch.arange(30.0).reshape(6, 5).sub(11).cuda().requires_grad_(requires_grad)


OPERATIONS = {
    "sort": lambda x: x.sort(0)[0],
    "topk": lambda x: x.topk(2)[0],
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "mask": lambda x: x[x > 0],
    "cumsum": lambda x: x.cumsum(1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "embedding": lambda x: nn.functional.embedding(torch.tensor([1, 2, 1], device=x.device), x),
    "stack": lambda x: torch.stack([x, x]).mean(0),
    "chunk": lambda x: x.chunk(3)[1],
    "fft": lambda x: torch.fft.fft(x).abs(),
    "inverse": lambda x: torch.linalg.inv(x[:5] + 50 * torch.eye(5, device=x.device)),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: x.norm(dim=1),
    "std": lambda x: x.std(0),
    "index": lambda x: x[torch.tensor([3, 0])],
    "scatter": lambda x: torch.zeros_like(x).scatter_add(
        0, torch.zeros(6, 5, dtype=torch.long, device=x.device), x / 2
    )[:1],
    "interpolate": lambda x: nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "one_hot": lambda x: x @ nn.functional.one_hot(torch.tensor([1, 2, 0, 4, 3], device=x.device)).float(),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "half": lambda x: (x.half() * 2).float(),
    "complex": lambda x: torch.complex(x, x).conj().abs(),
    "tril": lambda x: x.tril() + x.flip(0) + x.roll(1),
}

TOLERANCES = {"attention": 1e-4}  # the fused kernel of the CPU is not the one that the emulated device uses


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_are_those_of_the_cpu(emulated, name):
    x = matrix()
    y = x.detach().cpu().requires_grad_()
    results = [OPERATIONS[name](each) for each in (x, y)]
    weights = torch.linspace(0.5, 2, results[1].numel()).reshape(results[1].shape)
    (results[0] * weights.cuda()).sum().backward()
    (results[1] * weights).sum().backward()
    assert results[0].is_cuda
    assert x.grad.is_cuda
    limits = {"rtol": 1e-5, "atol": TOLERANCES.get(name, 1e-5)}
    torch.testing.assert_close(results[0].cpu(), results[1], **limits)
    torch.testing.assert_close(x.grad.cpu(), y.grad, **limits)


def test_all_memory_is_freed(emulated):
    for operation in OPERATIONS.values():
        x = matrix()
        operation(x).sum().backward()
    del x
    torch._C._cuda_clearCublasWorkspaces()
    assert allocated() == 0


def test_writes_go_to_the_memory_of_the_tensor(emulated):
    x = torch.zeros(4, 5, device="cuda")
    before, address = allocated(), x.data_ptr()
    x[0] = 1
    x[:, 1:3] = 2
    x[torch.tensor([2])] = 3.0
    x.index_add_(0, torch.tensor([3], device="cuda"), torch.ones(1, 5, device="cuda"))
    x.add_(1).mul_(2)
    torch.add(x, 1, out=x)
    x.t().sub_(1)
    assert x.tolist() == [[4, 6, 6, 4, 4], [2, 6, 6, 2, 2], [8, 8, 8, 8, 8], [4, 8, 8, 4, 4]]
    assert (allocated(), x.data_ptr()) == (before, address)


def test_views_allocate_nothing(emulated):
    x = torch.arange(24.0, device="cuda")
    before = allocated()
    views = [x.view(4, 6), x.view(4, 6).t(), x[3:9], x.unfold(0, 4, 2), x.view(torch.int32), x.expand(3, 24),
             x[..., None], x.detach(), x.chunk(2)[1], torch.view_as_complex(x.view(-1, 2)),
             x.as_strided((2, 2), (3, 5), 1)]  # fmt: skip
    assert allocated() == before
    assert len({each.untyped_storage()._cdata for each in views}) == 1
    assert views[2].data_ptr() == x.data_ptr() + 12


def test_result_that_grows_gets_new_memory(emulated):
    x = torch.zeros(4, device="cuda")
    x.resize_(1000)
    assert x.shape == (1000,)
    assert allocated() == 4096
    out = torch.empty(0, device="cuda")
    torch.mul(x.fill_(2), 3, out=out)
    assert allocated() == 8192
    assert out.tolist() == [6] * 1000


def test_only_tensors_of_the_device_record_streams(emulated):
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::record_stream' with arguments from the 'CPU'"):
        torch.ones(2).record_stream(torch.cuda.current_stream())


def test_storage_is_freed_and_allocated_again(emulated):
    x = torch.ones(1000, device="cuda")
    storage = x.untyped_storage()
    storage.resize_(0)
    assert (storage.size(), storage.nbytes(), allocated()) == (0, 0, 0)
    storage.resize_(4000)
    assert allocated() == 4096
    assert x.fill_(2).sum().item() == 2000


def test_full_device_refuses_to_resize_a_storage_and_keeps_it(emulated):
    x = torch.ones(1000, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        x.untyped_storage().resize_(1 << 40)
    assert allocated() == 4096
    assert x.tolist() == [1] * 1000


def test_save_load_pickle_and_deepcopy(emulated):
    module = nn.Linear(3, 2, device="cuda:1")
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    for location, expected in (
        (None, "cuda:1"),
        ("cpu", "cpu"),
        ("cuda:0", "cuda:0"),
        ({"cuda:1": "cuda:0"}, "cuda:0"),
    ):
        file.seek(0)
        loaded = torch.load(file, map_location=location)["weight"]
        assert str(loaded.device) == expected
        assert torch.equal(loaded.cpu(), module.weight.detach().cpu())
    for each in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert each.weight.device.index == 1
        assert torch.equal(each.weight, module.weight)
    assert torch.UntypedStorage(8, device="cuda").device == torch.device("cuda:0")


def test_pinned_memory_is_counted(emulated):
    x = torch.randn(1000).pin_memory()
    made = torch.zeros(1000, pin_memory=True)
    assert x.is_pinned()
    assert made.is_pinned()
    assert not torch.zeros(1).is_pinned()
    assert not x.cuda().is_pinned()
    assert torch.cuda.host_memory_stats()["active_bytes.current"] == 8192
    assert torch.equal(x.cuda(non_blocking=True).cpu(), x)
    assert x.cuda().to("cpu", non_blocking=True).equal(x)
    del x, made
    torch.cuda.synchronize()
    torch.ones(1).pin_memory()  # completes the frees that waited for copies
    assert torch.cuda.host_memory_stats()["active_bytes.current"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_pins(emulated, workers):
    data = torch_data.TensorDataset(torch.arange(16.0))
    loader = torch_data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    batches = [(batch.is_pinned(), batch.cuda(non_blocking=True).sum().item()) for (batch,) in loader]
    assert batches == [(True, 6.0), (True, 22.0), (True, 38.0), (True, 54.0)]


def test_threads_run_forward_and_backward(emulated):
    sums = []

    def work():
        x = torch.ones(3, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        sums.append(x.grad.sum().item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sums == [6.0] * 4


def test_legacy_types_and_default_device(emulated):
    assert isinstance(torch.cuda.FloatTensor([1, 2]), torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor(2, 3).dtype == torch.int64
    with torch.device("cuda:1"):
        assert torch.ones(2).device.index == nn.Linear(2, 2).weight.device.index == 1


def test_legacy_types_allocate_once_and_convert(emulated):
    made = torch.cuda.FloatTensor([1, 2])
    assert torch.cuda.max_memory_allocated() == 512
    assert torch.cuda.FloatTensor(made).data_ptr() == made.data_ptr()
    halves = torch.ones(2).type(torch.cuda.HalfTensor)
    assert (halves.type(), halves.tolist()) == ("torch.cuda.HalfTensor", [1, 1])
    assert made.type(torch.float64).type() == "torch.cuda.DoubleTensor"
    with pytest.raises(Unsupported, match=r"call torch\.set_default_device\('cuda'\) and torch\.set_default_dtype"):
        torch.set_default_tensor_type(torch.cuda.FloatTensor)


def test_memory_cannot_be_exported(emulated):
    x = torch.ones(3, device="cuda")
    with pytest.raises(BufferError, match="emulated device cannot be exported"):
        x.__dlpack__()
    with pytest.raises(AttributeError, match="no __cuda_array_interface__"):
        _ = x.__cuda_array_interface__
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()


def test_record_stream_delays_the_reuse_of_memory(emulated):
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    x.record_stream(stream)
    del x
    torch.cuda.synchronize()
    assert allocated() == 0


def test_functional_transforms_and_custom_functions(emulated):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.arange(12.0, device="cuda").view(3, 4).requires_grad_()
    Double.apply(x).sum().backward()
    assert x.grad.eq(2).all()
    squares = torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x.detach())
    assert torch.equal(squares, 2 * x.detach())


def test_checkpointing_computes_the_same(emulated):
    torch.manual_seed(1)
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5)).cuda()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    gradients = []
    for reentrant in (True, False):
        torch.cuda.manual_seed(3)
        checkpoint.checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        gradients.append(x.grad.tolist())
        x.grad = None
    torch.cuda.manual_seed(3)
    block(x).sum().backward()
    assert gradients == [x.grad.tolist()] * 2


def test_types_and_representations_are_those_of_pytorch(emulated):
    stream, event = torch.cuda.current_stream(), torch.cuda.Event()
    assert (repr(stream), repr(event)) == (
        "<torch.cuda.Stream device=cuda:0 cuda_stream=0x0>", "<torch.cuda.Event uninitialized>",
    )  # fmt: skip
    assert (torch.Stream in type(stream).__mro__, torch.Event in type(event).__mro__) == (True, True)
    assert isinstance(torch.Stream("cuda"), torch.cuda.Stream)
    assert torch.cuda.FloatTensor(1, device=None).device == torch.device("cuda:0")
    assert torch.backends.cudnn.version() >= 90000


def test_operators_without_memory_of_their_own(emulated):
    x = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    assert torch._lazy_clone(x).tolist() == [1, 2]
    assert torch._efficientzerotensor((), device="cuda").shape == ()
    scalar, other = (torch.tensor(each, device="cuda", requires_grad=True) for each in (1.0, 3.0))
    loss = torch.nn.functional.l1_loss(scalar, other, reduction="none")
    (gradient,) = torch.autograd.grad(loss, scalar, create_graph=True)
    assert gradient.item() == -1
    torch.autograd.grad(gradient, (scalar, other), allow_unused=True)
    out = torch.empty(0, dtype=torch.int64, device="cuda"), torch.empty(0, dtype=torch.int64, device="cuda")
    values, _ = torch.mode(torch.tensor([[1, 2, 2], [3, 3, 1]], device="cuda"), 1, out=out)
    assert values.tolist() == out[0].tolist() == [2, 3]
    z = torch.sparse_coo_tensor([[0]], torch.ones(1, dtype=torch.complex64), (3,), check_invariants=True).cuda()
    assert torch.view_as_real(z)._values().data_ptr() == z._values().data_ptr()
