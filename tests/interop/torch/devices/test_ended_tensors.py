"""Tensors that are used after the end of their emulation, of patch(), or in a forked child: one clear error."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.errors import Forked, WrongState  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices._storage_owners import has_ended  # noqa: E402 -- as above
from forebay.interop.torch.devices.torch_internals import CudaInterfaces  # noqa: E402 -- as above

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
ENDED = r"the emulation of .+, or patch\(\), has ended: copy tensors to the CPU before the end"


class Objects:
    """Tensors of a device, and what refers to them."""

    def __init__(self):
        self.x = torch.arange(4.0, device="cuda")
        self.empty = torch.empty(0, device="cuda")
        self.w = torch.ones(3, device="cuda", requires_grad=True)
        self.y = (self.w * 2).sum()
        self.gradient = torch.ones((), device="cuda")
        self.on_cpu = (torch.ones(3, requires_grad=True).cuda() * 2).cpu().sum()
        self.module = torch.nn.Linear(4, 2).cuda()
        self.storage = self.x.untyped_storage()
        self.sparse = torch.eye(3).to_sparse().cuda()
        self.compressed = torch.eye(3).to_sparse_csr().cuda()
        self.image = torch.ones(1, 2, 4, 4, device="cuda", requires_grad=True)
        self.convolution, self.normalization = torch.nn.Conv2d(2, 2, 3).cuda(), torch.nn.BatchNorm2d(2).cuda()
        self.recurrent, self.sequence = torch.nn.LSTM(4, 4).cuda(), torch.ones(2, 1, 4, device="cuda")


OPERATORS = {
    "add": lambda o: o.x + 1,
    "add in place": lambda o: o.x.add_(1),
    "add nothing": lambda o: o.empty + 1,
    "equal": lambda o: torch.equal(o.x, o.x),
    "fill": lambda o: o.x.fill_(1),
    "item": lambda o: o.x[0].item() if o.x.dim() else None,
    "tolist": lambda o: o.x.tolist(),
    "condition": lambda o: bool(o.gradient),
    "cpu": lambda o: o.x.cpu(),
    "copy to the CPU": lambda o: torch.ones(4).copy_(o.x),
    "copy from the CPU": lambda o: o.x.copy_(torch.ones(4)),
    "clone": lambda o: o.x.clone(),
    "like": lambda o: torch.zeros_like(o.x),
    "module": lambda o: o.module(o.x),
    "convolution": lambda o: o.convolution(o.image),
    "batch normalization": lambda o: o.normalization(o.image),
    "recurrent": lambda o: o.recurrent(o.sequence),
    "module to the CPU": lambda o: o.module.cpu(),
    "backward": lambda o: o.y.backward(),
    "backward from the CPU": lambda o: o.on_cpu.backward(),
    "foreach": lambda o: torch._foreach_add([o.x], 1),
    "sparse": lambda o: o.sparse.to_dense(),
    "sparse to the CPU": lambda o: o.sparse.cpu(),
    "sparse repr": lambda o: repr(o.sparse),
    "sparse save": lambda o: torch.save(o.sparse, io.BytesIO()),
    "sparse deepcopy": lambda o: copy.deepcopy(o.sparse),
    "elements of a sparse tensor": lambda o: o.sparse.values().cpu(),
    "compressed": lambda o: o.compressed + o.compressed,
    "compressed to the CPU": lambda o: o.compressed.cpu(),
    "compressed repr": lambda o: repr(o.compressed),
    "compressed pickle": lambda o: pickle.dumps(o.compressed),
    "indices of a compressed tensor": lambda o: o.compressed.crow_indices().cpu(),
    "add to the CPU": lambda o: torch.ones(4) + o.x,
    "add from the CPU": lambda o: o.x + torch.ones(4),
    "multiply on the CPU": lambda o: torch.ones(4).mul(o.x),
    "print": lambda o: print(o.x),
    "repr": lambda o: repr(o.x),
    "deepcopy": lambda o: copy.deepcopy(o.x),
    "deepcopy of a module": lambda o: copy.deepcopy(o.module),
    "pickle": lambda o: pickle.dumps(o.x),
    "save": lambda o: torch.save(o.x, io.BytesIO()),
    "storage to the CPU": lambda o: o.storage.cpu(),
    "elements of a storage": lambda o: o.storage.tolist(),
}
OF_SHAPES = ["like", "backward from the CPU"]  # in the next emulation: they use no memory of the tensors
ACCESSES = {
    "numpy": lambda o: o.x.numpy(),
    "array": lambda o: o.x.__array__(),
    "data_ptr": lambda o: o.x.data_ptr(),
    "data_ptr of a storage": lambda o: o.storage.data_ptr(),
    "resize": lambda o: o.storage.resize_(4),
    "free": lambda o: o.storage.resize_(0),
    "share": lambda o: o.x.share_memory_(),
    "sparse numpy": lambda o: o.sparse.numpy(),
    "to_dlpack": lambda o: torch.utils.dlpack.to_dlpack(o.x),
    "new": lambda o: o.storage.new(),
    "byteswap": lambda o: o.storage.byteswap(torch.int16),
    "swap": lambda o: o.storage._swap_data_ptr_(o.storage),
    "part of a storage": lambda o: o.storage[0:2],
    "from_dlpack": lambda o: torch.from_dlpack(o.x),
    "backward with a gradient": lambda o: o.y.backward(o.gradient),
    "grad": lambda o: torch.autograd.grad(o.y, o.w),
}


@pytest.fixture(autouse=True)
def restored():
    """Remove the refusal of ended tensors, which lasts until the next patch, for the other tests of the process."""
    yield
    gc.collect()
    with forebay.emulate("cuda"), patch():
        pass


def after_both():
    with forebay.emulate("cuda"), patch():
        return Objects()


def is_refused(use, objects):
    try:
        use(objects)
    except WrongState as error:
        return re.match(ENDED, str(error)) is not None
    except Exception:  # noqa: BLE001 -- another error, or none, is a failure
        return False
    return False


def accepted(uses, objects):
    """Return the names of the uses that do not raise the error."""
    return [name for name, use in uses.items() if not is_refused(use, objects)]


@pytest.mark.parametrize("emulation_ends", [False, True])
def test_each_use_after_the_end_of_a_patch_raises(emulation_ends):
    with forebay.emulate("cuda"):
        with patch():
            objects = Objects()
        if not emulation_ends:
            assert accepted({**OPERATORS, **ACCESSES}, objects) == []
    if emulation_ends:
        assert accepted({**OPERATORS, **ACCESSES}, objects) == []
    assert torch.ones(3).sum() == 3


def test_each_use_without_values_raises():
    with forebay.emulate("cuda"), patch("shapes"):
        x = torch.ones(4, device="cuda")
    uses = [lambda: x + 1, x.sum, x.tolist, x.cpu, x.data_ptr, lambda: repr(x), x.untyped_storage().data_ptr]
    for use in uses:
        with pytest.raises(WrongState, match=ENDED):
            use()


def test_each_use_in_the_next_emulation_raises():
    objects = after_both()
    with forebay.emulate("cuda"), patch():
        assert accepted({**OPERATORS, **ACCESSES}, objects) == OF_SHAPES
        new = torch.ones(4, device="cuda")
        with pytest.raises(WrongState, match=ENDED):
            new + objects.x
        assert (new + 1).tolist() == [2] * 4
        new.untyped_storage().resize_(32)
        assert new.data_ptr() == new.untyped_storage().data_ptr()


def test_each_use_after_the_end_of_the_emulation_alone_raises():
    emulation = forebay.emulate("cuda")
    with emulation, patch():
        objects = Objects()
        emulation.__exit__(None, None, None)
        assert accepted({**OPERATORS, **ACCESSES}, objects) == []
        with forebay.emulate("cuda"):
            assert accepted({**OPERATORS, **ACCESSES}, objects) == OF_SHAPES
            assert torch.ones(2, device="cuda").tolist() == [1, 1]
        assert accepted({**OPERATORS, **ACCESSES}, objects) == []


def test_each_use_after_a_patch_that_was_refused_raises():
    objects = after_both()
    with forebay.emulate("cuda"):
        with pytest.raises(ValueError, match="'shapes' or 'strict'"), patch("fast"):
            pass
        assert accepted(OPERATORS, objects) == []


@pytest.mark.parametrize("own_devices", [0, 1])
def test_operators_are_refused_unless_pytorch_has_devices_of_its_own(monkeypatch, own_devices):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: own_devices)
    guards = CudaInterfaces()._guards
    before = guards[1]
    with forebay.emulate("cuda"), patch():
        x = torch.ones(4, device="cuda")
    assert ("aten/copy_/CUDA" in torch.library._impls) == (not own_devices)
    assert (guards[1] == before) == bool(own_devices)
    with pytest.raises(WrongState, match=ENDED):
        x.data_ptr()


def test_the_device_guard_is_restored_by_a_patch_that_leaves_no_tensors():
    guards = CudaInterfaces()._guards
    before = guards[1]
    for _ in range(2):
        x = after_both().x
        assert guards[1] != before
    del x
    with forebay.emulate("cuda"), patch():
        pass
    assert guards[1] == before


def test_memory_of_emulated_tensors_is_not_exported(emulated):
    x = torch.ones(3, device="cuda")
    for export in (x.__dlpack__, lambda: torch.utils.dlpack.to_dlpack(x), lambda: torch.to_dlpack(x)):
        with pytest.raises(BufferError, match="copy the tensor to the CPU first"):
            export()
    assert torch.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(2))).tolist() == [1, 1]


def test_tensors_are_deleted_silently(monkeypatch):
    failures = []
    monkeypatch.setattr("sys.unraisablehook", failures.append)
    objects = after_both()
    assert has_ended()
    assert objects.x.shape == (4,)
    del objects
    gc.collect()
    assert not has_ended()
    assert failures == []
    with forebay.emulate("cuda"), patch():
        assert torch.ones(2, device="cuda").tolist() == [1, 1]


def test_nothing_is_replaced_if_no_tensor_is_alive():
    before = torch.Tensor.__repr__
    with forebay.emulate("cuda"), patch():
        torch.ones(2, device="cuda")
    gc.collect()
    with forebay.emulate("cuda"), patch():
        pass
    assert torch.Tensor.__repr__ is before


def test_a_forked_child_gets_the_error_of_a_gpu_and_the_parent_keeps_its_memory(emulated):
    objects = Objects()
    before = torch.cuda.memory_allocated()
    child = os.fork()
    if not child:
        status = 1
        try:
            for use in OPERATORS.values():
                with pytest.raises(Forked, match="Cannot re-initialize CUDA in forked subprocess"):
                    use(objects)
            del objects
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.cuda.memory_allocated() == before
    assert objects.x.tolist() == [0, 1, 2, 3]


def test_a_patch_that_is_entered_without_a_block_stays():
    with forebay.emulate("cuda"):
        kept = patch()
        kept.__enter__()
        try:
            assert torch.ones(2, device="cuda").is_cuda
        finally:
            kept.__exit__(None, None, None)

        @patch()
        def decorated():
            return torch.ones(2, device="cuda").tolist()

        assert decorated() == [1, 1]


@pytest.mark.parametrize("kept", ["patched = ", ""])
def test_exit_handlers_and_destructors_of_the_program_use_tensors(kept):
    program = f"""
import atexit
def use_at_exit():
    print((late.x + 1).tolist(), late.x.cpu().sum().item(), flush=True)
atexit.register(use_at_exit)  # before PyTorch's handlers: it runs after them
import torch, forebay, forebay.interop.torch
class Late:
    def __init__(self):
        self.x = torch.ones(2, device="cuda")
    def __del__(self):
        print("deleted", (self.x @ self.x).item(), flush=True)
emulation = forebay.emulate("cuda")
{kept}forebay.interop.torch.patch().__enter__()
late = Late()
"""
    where = {**os.environ, "PYTHONMALLOC": "debug"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=where, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2.0, 2.0] 2.0\ndeleted 2.0\n", "")


def test_memory_that_runs_out_in_a_later_emulation_is_said():
    """A tensor of the first one is alive: its checks must not take over the error of the second."""
    with forebay.emulate("cuda"), patch():
        kept = torch.ones(3, device="cuda")

    class Large(torch.autograd.Function):
        @staticmethod
        def forward(_, given):
            return given.clone()

        @staticmethod
        def backward(_, gradient):
            return torch.empty(64 << 20, device="cuda")

    with forebay.emulate("cuda", memory="64MiB"), patch():
        loss = Large.apply(torch.ones(3, device="cuda", requires_grad=True)).sum()
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        del loss
    with pytest.raises(WrongState, match=ENDED):
        kept.tolist()


def test_errors_of_functions_in_a_later_emulation_are_kept():
    """A tensor of the first one is alive: its checks must not take over an error that has the word cuda."""
    with forebay.emulate("cuda"), patch():
        kept = torch.ones(3, device="cuda")

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(_, given):
            return given.clone()

        @staticmethod
        def backward(_, gradient):
            raise RuntimeError("no kernel for CUDA")

    with forebay.emulate("cuda"), patch():
        loss = Refusing.apply(torch.ones(3, device="cuda", requires_grad=True)).sum()
        with pytest.raises(RuntimeError, match="no kernel for CUDA"):
            loss.backward()
        del loss
    with pytest.raises(WrongState, match=ENDED):
        kept.tolist()


@pytest.mark.parametrize("allocator", ["default", "debug"])  # the second overwrites memory that Python frees
@pytest.mark.parametrize("caching", ["", "1"])
def test_nothing_is_printed_at_the_exit_while_pytorch_is_patched(caching, allocator):
    program = """
import os, sys, threading, torch, forebay, forebay.interop.torch
forebay.emulate("cuda")
patched = forebay.interop.torch.patch()
patched.__enter__()
pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
with torch.cuda.use_mem_pool(pool):
    x = torch.empty(1 << 20, device="cuda")
with torch.cuda.graph(graph):
    y = torch.ones(3, device="cuda") + 1
w = torch.ones(3, device="cuda", requires_grad=True)
cycle = [torch.ones(3, device="cuda")]
cycle.append(cycle)
threading.kept = os.kept = [pool, graph, torch.ones(3).pin_memory(), w, (w * 2).sum(), torch.cuda.Event(), cycle]
stream = torch.cuda.stream(torch.cuda.Stream())
stream.__enter__()
del pool, graph, cycle
"""
    where = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": caching, "PYTHONMALLOC": allocator}
    done = subprocess.run(
        [sys.executable, "-c", program], env=where, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
