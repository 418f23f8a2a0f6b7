"""Storages of emulated devices, copies of numbers, and gradients of copies: what they do on the CPU."""

from __future__ import annotations

import tempfile

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


def numbers(device, count=4, dtype=torch.float32):
    return torch.arange(count, device=device).to(dtype)


def swapped(device):
    x, y = torch.zeros(2, device=device), torch.ones(2, device=device)
    view = x.view(2, 1)
    x.untyped_storage()._swap_data_ptr_(y.untyped_storage())
    x.add_(1)
    return x.tolist(), y.tolist(), view.tolist()


def swapped_with_nothing(device):
    x, y = torch.zeros(2, device=device), torch.empty(0, device=device)
    x.untyped_storage()._swap_data_ptr_(y.untyped_storage())
    return x.untyped_storage().nbytes(), y.untyped_storage().nbytes(), y.set_(y.untyped_storage(), 0, (2,)).tolist()


def swapped_tensors(device):
    x, y = torch.zeros(2, device=device), torch.ones(3, device=device)
    torch.utils.swap_tensors(x, y)
    return x.tolist(), y.tolist()


def set_to_a_storage(device):
    x, y = torch.zeros(4, device=device), numbers(device, 8)
    x.set_(y.untyped_storage(), 2, (2, 2), (2, 1)).add_(10)
    return x.tolist(), y.tolist(), torch.zeros(3, device=device).set_().shape


def set_data(device):
    x, y = torch.zeros(4, device=device, requires_grad=True), numbers(device, 3)
    x.data = y
    y.add_(1)
    return x.tolist(), x.requires_grad


def resized(device):
    x = numbers(device)
    view, storage = x.view(2, 2), x.untyped_storage()
    x.resize_(6).fill_(5)
    keys = {each._cdata for each in (storage, x.untyped_storage(), view.untyped_storage())}
    return view.tolist(), len(keys), storage.nbytes()


def resized_storage(device):
    x = numbers(device)
    storage = x.untyped_storage()
    storage.resize_(8)
    smaller = x[:2].tolist()
    storage.resize_(32)
    x.set_(storage, 0, (8,))[2:] = 7
    return smaller, storage.nbytes(), x.tolist(), x.as_strided((2,), (7,)).tolist()


def output_that_grows(device):
    x = torch.zeros(0, device=device)
    view = x[:0]
    torch.add(torch.ones(3, device=device), 1, out=x)
    return x.tolist(), x.untyped_storage()._cdata == view.untyped_storage()._cdata


def copied_storages(device):
    x, y, host = numbers(device), torch.zeros(4, device=device), torch.zeros(4)
    y.untyped_storage().copy_(x.untyped_storage())
    host.untyped_storage().copy_(y.untyped_storage())
    x.untyped_storage().copy_(torch.ones(4).untyped_storage())
    y.untyped_storage().fill_(1)
    return x.tolist(), y.view(torch.uint8).tolist(), host.tolist(), x.untyped_storage().clone().tolist()


def elements_of_a_storage(device):
    x = numbers(device, 8, torch.uint8)
    storage = x.untyped_storage()
    storage[1], storage[6:] = 7, 9
    part = storage[2:6]
    nested = part[1:3]
    part[0] = 99
    nested.fill_(3)
    offsets = part.data_ptr() - storage.data_ptr(), nested.data_ptr() - storage.data_ptr()
    others = storage[-3:].tolist(), storage[5:2].tolist(), storage[3:100].tolist(), storage[1]
    found = x.tolist()
    del x, storage
    return found, offsets, others, part.tolist(), numbers(device, 0, torch.uint8).set_(part).add_(1).tolist(), [*nested]


def converted_storage(device):
    x = numbers(device, 2, torch.int16)
    x.untyped_storage().byteswap(torch.int16)
    new = x.untyped_storage().new()
    return x.tolist(), x.untyped_storage().cpu().tolist(), new.nbytes(), new.device.type == device


def written_storage(device):
    with tempfile.TemporaryFile() as file:
        numbers(device, 4, torch.uint8).untyped_storage()._write_file(file, True, False, 1)
        file.seek(0)
        return file.read()


def copied_numbers(device):
    made = [torch.zeros(2, device=device, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.int64)]
    for each in made:
        each.copy_(2)
    made.append(torch.zeros(2, device=device, dtype=torch.float64).copy_(0.1))
    made.append(torch.zeros(2, device=device, dtype=torch.bool).copy_(other=True))
    made.append(torch.zeros(2, device=device, dtype=torch.complex64).copy_(1 + 2j))
    return [each.tolist() for each in made]


def gradient_of_a_copied_number(device):
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    y[:2].copy_(0.5)
    y.sum().backward()
    return x.grad.tolist()


def gradients_of_copies(device):
    x = torch.ones(2, 2, device=device, requires_grad=True)
    legacy = torch.cuda.HalfTensor if device == "cuda" else torch.HalfTensor
    copies = [x.cpu(), x.to("cpu", non_blocking=True), x.clone(), x.t().contiguous(), x.double(), x.half(),
              x.to(x.device, copy=True), x.type(legacy)]  # fmt: skip
    sum(each.double().cpu().sum() for each in copies).backward()
    return [each.requires_grad for each in copies], x.grad.tolist()


PROGRAMS = [
    swapped, swapped_with_nothing, swapped_tensors, set_to_a_storage, set_data, resized, resized_storage,
    output_that_grows, copied_storages, elements_of_a_storage, converted_storage, written_storage, copied_numbers,
    gradient_of_a_copied_number, gradients_of_copies,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_return_what_they_return_on_the_cpu(emulated, program):
    assert program("cuda") == program("cpu")


def test_refused_exchanges_change_nothing(emulated):
    x = numbers("cuda")
    for other in (numbers("cpu"), numbers("cuda:1"), numbers("cuda", 8)):
        with pytest.raises(RuntimeError, match="_swap_data_ptr_: storages must"):
            x.untyped_storage()._swap_data_ptr_(other.untyped_storage())
        assert (x.tolist(), other.tolist()[:4]) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_a_resized_storage_has_the_address_of_its_block(emulated):
    x = torch.ones(1000, device="cuda")
    before = x.data_ptr()
    x.untyped_storage().resize_(8000)
    other = torch.ones(1000, device="cuda")
    assert len({x.data_ptr(), other.data_ptr()}) == 2
    assert other.data_ptr() == before  # which the storage has freed
    assert torch.cuda.memory_allocated() == 8192 + 4096


def test_a_grown_tensor_frees_the_block_of_its_views(emulated):
    x = torch.zeros(1000, device="cuda")
    views = [x.view(10, 100), x[3:]]
    x.resize_(2000)
    assert torch.cuda.memory_allocated() == 8192
    assert {each.untyped_storage().nbytes() for each in views} == {8000}


def test_without_pytorchs_exchange_a_storage_is_resized_at_its_address(emulated, monkeypatch):
    from forebay.interop.torch.devices import emulated_memory

    monkeypatch.setattr(emulated_memory, "_swap", None)  # an older version
    x = torch.ones(1000, device="cuda")
    storage = x.untyped_storage()
    for size, expected in ((0, 0), (4000, 4096), (8000, 8192), (4000, 4096)):
        storage.resize_(size)
        assert (storage.nbytes(), torch.cuda.memory_allocated()) == (size, expected)
    assert x.fill_(2).sum().item() == 2000
    del x, storage
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize("values", ["emulated", "shapes_only"])
def test_pinned_copies_have_the_gradient(request, values):
    request.getfixturevalue(values)
    x = torch.ones(2, requires_grad=True)
    leaf, copy = x.pin_memory(), (x * 2).pin_memory()
    moved = copy.to("cuda", non_blocking=True)
    assert leaf.is_pinned()
    assert copy.is_pinned()
    assert all(each.requires_grad and not each.is_leaf for each in (leaf, copy, moved))
    made = torch.zeros(2, pin_memory=True, requires_grad=True)
    assert (made.is_leaf, made.requires_grad) == (True, True)
    with torch.no_grad():
        assert not x.pin_memory().requires_grad
    assert not x.detach().pin_memory().requires_grad
    (leaf.sum() + 3 * copy.sum()).backward()
    assert x.grad.tolist() == [7, 7]


def test_pinned_copies_pass_the_check_of_gradients(emulated):
    x = torch.randn(2, 2, dtype=torch.double, requires_grad=True)
    assert torch.equal(x, x.pin_memory())
    torch.autograd.gradcheck(lambda each: each.pin_memory(), [x])
    torch.autograd.gradgradcheck(lambda each: each.pin_memory(), [x])


def test_parts_of_a_storage_keep_its_memory(shapes_only):
    part = torch.zeros(1000, dtype=torch.uint8, device="cuda").untyped_storage()[10:20]
    assert (part.nbytes(), torch.cuda.memory_allocated()) == (10, 1024)
    del part
    assert torch.cuda.memory_allocated() == 0
