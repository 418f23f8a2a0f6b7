"""Storages of emulated devices that are resized to nothing, to less than a tensor needs, or to nonsense."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.nn import functional  # noqa: E402 -- after PyTorch, without which the file is skipped

from forebay.errors import OutOfMemory, WrongState  # noqa: E402 -- as above

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
NO_ROOM = "its data is not allocated yet: the elements need [0-9,]+ bytes, and the storage has [0-9,]+. Resize it"


def freed(count=64, **options):
    x = torch.ones(count, device="cuda", **options)
    x.untyped_storage().resize_(0)
    return x


def freed_on_host(**options):
    x = torch.zeros(64, **options)
    x.untyped_storage().resize_(0)
    return x


def smaller():
    x = torch.ones(1 << 20, device="cuda")
    x.untyped_storage().resize_(16)
    return x


def saved_for_backward():
    w, x = torch.ones(64, device="cuda", requires_grad=True), torch.ones(64, device="cuda")
    y = w * x
    x.untyped_storage().resize_(0)
    return y.sum()


def sparse():
    values = torch.ones(4, device="cuda")
    made = torch.sparse_coo_tensor(
        torch.zeros(1, 4, dtype=torch.long, device="cuda"), values, (8,), check_invariants=False
    )
    values.untyped_storage().resize_(0)
    return made


def nested(**options):
    made = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], device="cuda", **options)
    made.values().untyped_storage().resize_(0)
    return made


def module(made):
    made.weight.data.untyped_storage().resize_(0)
    return made


def stepped():
    w = torch.ones(64, device="cuda", requires_grad=True)
    w.grad = torch.ones(64, device="cuda")
    optimizer = torch.optim.Adam([w])
    optimizer.step()
    w.data.untyped_storage().resize_(0)
    return optimizer


USES = {
    "add": lambda: freed() + 1,
    "add in place": lambda: freed().add_(1),
    "add to less": lambda: smaller() + 1,
    "fill less": lambda: smaller().fill_(1),
    "zero": lambda: freed().zero_(),
    "draw": lambda: freed().normal_(),
    "dropout": lambda: functional.dropout(freed()),
    "out": lambda: torch.add(torch.ones(64, device="cuda"), 1, out=freed()),
    "sum": lambda: freed().sum(),
    "product": lambda: freed().view(8, 8) @ torch.ones(8, 8, device="cuda"),
    "copy to the CPU": lambda: torch.zeros(64).copy_(freed()),
    "copy from the CPU": lambda: freed().copy_(torch.zeros(64)),
    "copy on the device": lambda: freed().copy_(torch.zeros(64, device="cuda")),
    "clone": lambda: freed().clone(),
    "convert": lambda: freed().half(),
    "foreach": lambda: torch._foreach_add_([freed(), freed()], 1),
    "concatenate": lambda: torch.cat([freed(), freed()]),
    "index": lambda: freed()[torch.tensor([1, 2], device="cuda")],
    "layer norm": lambda: functional.layer_norm(freed().view(8, 8), (8,)),
    "loss": lambda: functional.cross_entropy(freed().view(8, 8), torch.zeros(8, dtype=torch.long, device="cuda")),
    "embedding": lambda: module(torch.nn.Embedding(8, 8, device="cuda"))(
        torch.zeros(2, dtype=torch.long, device="cuda")
    ),
    "convolution": lambda: module(torch.nn.Conv2d(8, 8, 3, device="cuda"))(torch.ones(2, 8, 9, 9, device="cuda")),
    "normalization": lambda: module(torch.nn.BatchNorm2d(8, device="cuda"))(torch.ones(2, 8, 9, 9, device="cuda")),
    "backward": lambda: saved_for_backward().backward(),
    "optimizer": lambda: stepped().step(),
    "sparse repr": lambda: repr(sparse()),
    "jagged": lambda: nested(layout=torch.jagged) * 2,
    "freed on the CPU": lambda: freed_on_host().cuda(),
    "to freed on the CPU": lambda: freed_on_host().copy_(torch.ones(64, device="cuda")),
    "indices on the CPU": lambda: torch.ones(64, device="cuda")[freed_on_host(dtype=torch.long)],
}
READS = {
    "item": lambda: freed(1).item(),
    "condition": lambda: bool(freed(1)),
    "cpu": lambda: freed().cpu(),
    "tolist": lambda: freed().tolist(),
    "repr": lambda: repr(freed()),
    "equal": lambda: torch.equal(freed(), freed()),
    "nonzero": lambda: freed().nonzero(),
    "sparse": lambda: sparse().to_dense(),
    "nested": lambda: nested() * 2,
    "attention": lambda: functional.scaled_dot_product_attention(*[freed(256).view(2, 2, 8, 8)] * 3),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_each_use_of_elements_without_memory_raises(request, mode, use):
    request.getfixturevalue(mode)
    with pytest.raises(WrongState, match=NO_ROOM):
        USES[use]()


@pytest.mark.parametrize("use", READS)
def test_each_read_of_elements_without_memory_raises(emulated, use):
    with pytest.raises(WrongState, match=NO_ROOM):
        READS[use]()


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_what_uses_no_elements_needs_no_memory(request, mode):
    request.getfixturevalue(mode)
    x = freed()
    like = [torch.zeros_like, torch.empty_like, torch.rand_like, lambda x: torch.full_like(x, 2)]
    assert [make(x).shape for make in like] == [(64,)] * 4
    assert (x.view(8, 8).shape, x.detach().data_ptr(), x.is_set_to(x), x[:0].add(1).shape) == ((8, 8), 0, True, (0,))
    assert x.resize_(64).untyped_storage().nbytes() == 0  # PyTorch keeps the storage if the shape is the same
    assert x.resize_(128).untyped_storage().nbytes() == 512


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_a_freed_storage_is_copied_and_saved(request, mode):
    request.getfixturevalue(mode)
    x = freed()
    assert copy.deepcopy(x).untyped_storage().nbytes() == 256  # PyTorch sets the shape, which resizes the new storage
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.load(file).shape == (64,)
    assert pickle.loads(pickle.dumps(torch.empty(0, 3, device="cuda"))).shape == (0, 3)


def test_a_storage_that_is_freed_and_resized_serves_its_views(emulated):
    x = torch.ones(64, device="cuda")
    view = x.view(8, 8)
    for step in range(3):
        x.untyped_storage().resize_(0)
        assert torch.cuda.memory_allocated() == 0
        x.untyped_storage().resize_(256)
        x.copy_(torch.full((64,), step))
        assert view.sum().item() == 64 * step


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_setting_a_larger_shape_resizes_the_storage(request, mode):
    request.getfixturevalue(mode)
    x = torch.ones(1024, device="cuda")
    storage, view = x.untyped_storage(), x.view(32, 32)
    x.set_(storage, 0, (4096,))
    assert (storage.nbytes(), view.untyped_storage().nbytes(), x.fill_(1).shape) == (16384, 16384, (4096,))
    assert torch.cuda.memory_allocated() == 16384
    x.set_(storage, 2, (3, 2000), (2048, 1))
    assert (storage.nbytes(), x.stride()) == ((2 + 2 * 2048 + 2000) * 4, (2048, 1))
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        x.set_(storage, 0, (1 << 60,))


def test_a_larger_shape_keeps_the_values(emulated):
    x = torch.ones(4, device="cuda")
    view = x[1:]
    x.set_(x.untyped_storage(), 0, (8,))
    x[4:] = 2
    view.fill_(3)
    assert x.tolist() == [1, 3, 3, 3, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        ("resize_ expects an int, but got str", ("a",)),
        ("resize_ expects an int, but got float", (8.0,)),
        ("resize_ expects an int, but got bool", (True,)),
        ("resize_ expects an int, but got NoneType", (None,)),
        ("takes exactly one argument", ()),
        ("takes exactly one argument", (1, 2)),
        ("Overflow when unpacking long long", (1 << 64,)),
    ],
)
def test_nonsense_sizes_raise_pytorchs_errors(emulated, error, arguments):
    x = torch.ones(4, device="cuda")
    for storage in (x.untyped_storage(), torch.ones(4).untyped_storage()):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=error):
            storage.resize_(*arguments)
    assert x.tolist() == [1] * 4


def test_sizes_that_no_device_has_raise_the_errors_of_a_gpu(emulated):
    x = torch.ones(4, device="cuda")
    for size in (-1, -5):
        with pytest.raises(RuntimeError, match=rf"Requested storage size \({size}\) cannot be represented as a size_t"):
            x.untyped_storage().resize_(size)
    with pytest.raises((OutOfMemory, torch.OutOfMemoryError), match="Tried to allocate more than 1EB memory"):
        x.untyped_storage().resize_(1 << 62)
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        x.untyped_storage().resize_(size=8)
    assert x.tolist() == [1] * 4
