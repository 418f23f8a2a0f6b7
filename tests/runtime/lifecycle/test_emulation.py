"""Emulated devices of other kinds."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import forebay
from forebay import DeviceError, ForebayError, WrongState, backends
from forebay.runtime.devices import retired_devices
from forebay.runtime.lifecycle.emulation import observe_ends

pytestmark = pytest.mark.usefixtures("clean")
MIB = 1 << 20


def test_emulate_makes_devices_of_the_kind():
    with forebay.emulate("cuda", count=2, profile="h200"):
        assert forebay.device_count("cuda") == 2
        assert forebay.why_not("cuda") == ""
        assert backends.driver("cuda").describe(1).name == "NVIDIA H200 (emulated)"
        made = forebay.full((2, 3), 1.5, device="cuda:1")
        assert str(made.device) == "cuda:1"
        assert made.cpu().numpy().tolist() == [[1.5] * 3] * 2
        with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
            made.numpy()
        with pytest.raises(DeviceError, match="CUDA error: invalid device ordinal") as caught:
            forebay.empty(1, device="cuda:2")
        assert caught.value.__notes__ == ["No device cuda:2: there is only cuda:0 to cuda:1."]
    assert forebay.device_count("cuda") == 0
    assert "forebay.emulate('cuda')" in forebay.why_not("cuda")


@pytest.mark.parametrize("far", [False, True])
def test_emulated_queues_convert_and_copy_strided_tensors(far):
    with forebay.emulate("cuda", count=2):
        numbers = forebay.from_numpy(np.arange(20_000.0).reshape(100, 200)).to("cuda:0")
        assert numbers.to(dtype="int32").tolist() == numbers.tolist()
        target = forebay.zeros(200, 100, dtype="float16", device="cuda:1" if far else "cuda:0").permute(1, 0)
        target.copy_(numbers)
        assert target[7, ::50].tolist() == [1400, 1450, 1500, 1550]
        target[::2, ::3].fill_(2.5)
        assert target[6:8, 3:5].tolist() == [[2.5, 1204], [1403, 1404]]


@pytest.mark.parametrize(("kind", "name"), [("cuda", "NVIDIA H200"), ("mps", "Apple M3 Max"), ("mtia", "MTIA v2")])
def test_each_kind_has_a_default_profile(kind, name):
    with forebay.emulate(kind):
        assert backends.driver(kind).describe(0).name == f"{name} (emulated)"


def test_segment_sizes_are_those_of_pytorch():
    with forebay.emulate("cuda"):
        block = forebay.allocate(3 * MIB, "cuda")
        assert forebay.memory.memory_reserved("cuda") == 20 * MIB
        del block


def test_emulated_memory_may_exceed_the_hosts():
    with forebay.emulate("cuda", memory="4TiB"):
        block = forebay.allocate(3 << 40, "cuda")
        assert forebay.memory.mem_get_info("cuda") == (1 << 40, 4 << 40)
        with pytest.raises(forebay.OutOfMemory, match=r"Tried to allocate 2048\.00 GiB"):
            forebay.allocate(2 << 40, "cuda")
        del block


def test_objects_of_stopped_emulation_raise():
    emulation = forebay.emulate("cuda")
    tensor, stream, event = forebay.zeros(3, device="cuda"), forebay.Stream("cuda"), forebay.Event("cuda")
    event.record(stream)
    emulation.stop()
    emulation.stop()
    for use in (
        tensor.tolist,
        tensor.zero_,
        tensor.cpu,
        stream.synchronize,
        stream.query,
        event.query,
        event.synchronize,
    ):
        with pytest.raises(WrongState, match="the emulation of cuda:0 has ended"):
            use()
    with forebay.emulate("cuda"):
        with pytest.raises(WrongState, match="has ended"):
            tensor.tolist()
        assert forebay.zeros(3, device="cuda").tolist() == [0, 0, 0]


def test_observers_are_told_of_the_end_of_an_emulation():
    ended = []
    stop = observe_ends(ended.append)
    try:
        emulation = forebay.emulate("cuda")
        assert ended == []
        emulation.stop()
        emulation.stop()
        assert ended[0] == "cuda"
    finally:
        stop()
    count = len(ended)
    with forebay.emulate("cuda"):
        pass
    assert len(ended) == count


def test_each_emulation_starts_afresh():
    for _ in range(2):
        with forebay.emulate("cuda", count=2):
            assert forebay.memory.memory_stats("cuda")["num_device_alloc"] == 0
            assert forebay.empty(1, device="cuda").device == forebay.device("cuda:0")
            forebay.set_device("cuda:1")
            forebay.set_stream(forebay.Stream())
            forebay.manual_seed(3, "cuda:1")
            forebay.zeros(3)
            assert forebay.random.initial_seed("cuda:1") == 3
    assert forebay.current_device() == forebay.device("cpu")
    with forebay.emulate("cuda"):
        assert forebay.random.initial_seed("cuda") != 3


def test_port_is_closed_when_last_tensor_is_deleted():
    emulation = forebay.emulate("cuda")
    tensor = forebay.zeros(1000, device="cuda")
    port = tensor.raw_storage.opened.port
    emulation.stop()
    assert port.memory_info()[0] < port.memory_info()[1]
    del tensor
    gc.collect()
    with forebay.emulate("cuda"):
        pass
    with pytest.raises(WrongState, match="was closed"):
        port.memory_info()


@pytest.mark.parametrize("user", ["pool", "graph"])
def test_port_is_closed_while_unused_private_pool_has_users(user, remaining):
    with forebay.emulate("cuda"):
        if user == "pool":
            kept = forebay.cuda.MemPool()
            with forebay.cuda.use_mem_pool(kept):
                forebay.full((1000,), 1.0, device="cuda")
        else:
            kept, source = forebay.cuda.CUDAGraph(), forebay.ones(1000, device="cuda")
            with forebay.cuda.graph(kept):
                source.clone()
            del source
    gc.collect()
    retired_devices.close_unused()
    assert remaining() == []
    del kept


def test_tensor_of_private_pool_outlives_its_emulation_and_pool(remaining):
    with forebay.emulate("cuda"):
        pool = forebay.cuda.MemPool()
        with forebay.cuda.use_mem_pool(pool):
            kept = forebay.full((1000,), 1.0, device="cuda")
    del pool
    retired_devices.close_unused()
    assert len(remaining()) == 1
    del kept
    retired_devices.close_unused()
    assert remaining() == []


def test_second_emulation_of_used_kind_raises():
    with forebay.emulate("cuda"):
        forebay.zeros(3, device="cuda")
        with pytest.raises(WrongState, match="in use already"):
            forebay.emulate("cuda")


@pytest.mark.parametrize("count", [0, -1, 65, True, 1.5, "2"])
def test_emulate_rejects_invalid_count(count):
    with pytest.raises(ValueError, match="count must be an int from 1 to 64"):
        forebay.emulate("cuda", count)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"profile": "h2000"}, "there is no profile 'h2000', the nearest is 'h200'"),
        ({"profile": "Apple M4"}, "profile 'apple_m4' is of kind mps, not cuda; profiles of cuda: a10, a100"),
        ({"memory": 0}, "memory"),
        ({"memory": -1}, "memory"),
        ({"memory": "much"}, "much"),
        (
            {"kind": "banana"},
            "'banana' is not a kind of device that can be emulated; there are profiles for cuda, mps, mtia",
        ),
        ({"kind": "banana", "profile": "h200"}, "'banana' is not a kind of device"),
    ],
    ids=str,
)
def test_invalid_arguments_change_nothing(arguments, words):
    with pytest.raises(ValueError, match=words):
        forebay.emulate(**{"kind": "cuda", **arguments})
    assert forebay.device_count("cuda") == 0


def output_with(code: str, emulate: str) -> str:
    environment = {**os.environ, "FOREBAY_EMULATE": emulate}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def remaining():
    """Return a function that lists the devices of emulations that ended during the test and are not closed."""
    earlier = retired_devices.remaining()
    return lambda: [opened for opened in retired_devices.remaining() if opened not in earlier]


def test_pinned_memory_outlives_its_emulation(remaining):
    with forebay.emulate("cuda"):
        numbers = forebay.full((MIB,), 2.5, pin_memory=True)
    assert numbers[::100_000].tolist() == [2.5] * 11
    assert len(remaining()) == 1
    del numbers
    retired_devices.close_unused()  # signals the CPU's stream
    forebay.synchronize("cpu")
    retired_devices.close_unused()
    assert not remaining()


def test_pinned_memory_outlives_the_work_of_other_kinds(remaining):
    """The CPU's stream fills it after the emulation."""
    gate, stream = threading.Event(), forebay.current_stream("cpu")
    source = forebay.zeros(MIB)
    with forebay.emulate("cuda", count=2):
        forebay.empty(1, device="cuda:1")
        made = forebay.empty(MIB, pin_memory=True)
        stream.queue.call(lambda: gate.wait(30))
        made.copy_(source, non_blocking=True)
        del made
    assert len(remaining()) == 1
    gate.set()
    stream.synchronize()
    retired_devices.close_unused()
    stream.synchronize()
    retired_devices.close_unused()
    assert not remaining()


@pytest.mark.slow
def test_environment_emulates_several_kinds():
    code = "import forebay; print([forebay.device_count(kind) for kind in ('cuda', 'mps', 'mtia')])"
    assert output_with(code, "cuda:2,mps,mtia") == "[2, 1, 1]"


@pytest.mark.slow
def test_environment_sets_count_and_profile():
    code = "import forebay; print(forebay.device_count('cuda'), forebay.zeros(2, device='cuda:1').tolist())"
    assert output_with(code, "cuda:2@h200") == "2 [0.0, 0.0]"


@pytest.mark.slow
@pytest.mark.parametrize("emulate", ["cuda:0", "cuda:2@", "cuda@none", "cuda,cuda", "cuda:100", "CUDA:cuda"])
def test_invalid_environment_is_reported_by_why_not(emulate):
    output = output_with("import forebay; print(forebay.device_count('cuda'), forebay.why_not('cuda'))", emulate)
    assert output.startswith("0 environment variable FOREBAY_EMULATE: ")


@pytest.mark.slow
def test_face_is_imported_lazily():
    code = "import forebay, sys; print('forebay.cuda' in sys.modules, forebay.cuda.device_count())"
    assert output_with(code, "cuda:3") == "False 3"
    assert output_with("import forebay; print(forebay.accelerator.current_accelerator())", "cuda:3") == "cuda"


@pytest.mark.slow
def test_first_rng_state_has_the_queued_seed():
    code = """
import forebay
forebay.current_device()  # checks which kinds are available, without initialising one
forebay.cuda.manual_seed(3)
print(forebay.cuda.get_rng_state()[0].item(), forebay.cuda.is_initialized())
"""
    assert output_with(code, "cuda") == "3 True"


@pytest.mark.slow
@pytest.mark.parametrize("emulate", ["nope", "cuda,nope:2", "tpu@h200"])
def test_environment_with_unknown_kind_is_reported_by_why_not(emulate):
    output = output_with("import forebay; print(forebay.device_count('cuda'), forebay.why_not('cuda'))", emulate)
    assert output.startswith("0 environment variable FOREBAY_EMULATE: ")
    assert output.endswith("is not one of cuda, mps, mtia")


def test_no_thread_opens_a_device_of_an_ending_emulation(monkeypatch):
    """It would outlive the emulation: the streams of its kind are reset, and the next emulation would use it."""
    found = []

    def open_now(opened):
        with pytest.raises(ForebayError) as caught:
            forebay.empty(1, device="cuda")
        found.append(caught.value)

    emulation = forebay.emulate("cuda")
    made = forebay.empty(1, device="cuda")
    with monkeypatch.context() as patched:
        patched.setattr(retired_devices, "_synchronize", open_now)
        emulation.stop()
    assert ["Found no NVIDIA driver" in str(error) for error in found] == [True, True]
    with forebay.emulate("cuda"):
        assert forebay.empty(1, device="cuda").raw_storage.opened is not made.raw_storage.opened


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_memory_reserved_while_the_device_is_closed_is_not_returned(kind, settings, monkeypatch):
    """A thread has checked that the device is usable before its emulation ends, and allocates afterwards."""
    monkeypatch.setenv("FOREBAY_ALLOC_CONF", settings)
    with forebay.emulate(kind):
        allocator = forebay.default_stream(kind).opened.allocator
        allocator.allocate(MIB, 0)
    assert allocator.retired  # what such a thread sees; see Note [Retired devices]
    with pytest.raises(WrongState, match=f"{kind}:0 was closed"):
        allocator.allocate(MIB, 0)
    with forebay.emulate(kind):
        opened = forebay.default_stream(kind).opened
        with monkeypatch.context() as patched:  # as if the other thread reserved before, and adopted after the check
            patched.setattr(opened.port, "close", lambda: None)
            opened.allocator.retired = True
            with pytest.raises(WrongState, match=f"the emulation of {kind}:0 has ended"):
                opened.allocator.allocate(MIB, 0)


ACCESSES = {
    "cpu": lambda made: made.cpu(),
    "to the host": lambda made: made.to("cpu"),
    "to another dtype": lambda made: made.to(forebay.float64),
    "tolist": lambda made: made.tolist(),
    "item": lambda made: made[0, 0].item(),
    "bool": lambda made: bool(made[0, 0]),
    "setitem": lambda made: made.__setitem__(0, 1),
    "fill": lambda made: made.fill_(1),
    "zero": lambda made: made.zero_(),
    "copy from the host": lambda made: made.copy_(forebay.zeros(4, 4, device="cpu")),
    "copy to the host": lambda made: forebay.zeros(4, 4, device="cpu").copy_(made),
    "clone": lambda made: made.clone(),
    "clone of a view": lambda made: made[1:, ::2].clone(),
    "clone of a transposed one": lambda made: made.transpose(0, 1).clone(),
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "zeros_like": forebay.zeros_like,
    "empty_like": forebay.empty_like,
    "rand_like": forebay.rand_like,
    "uniform": lambda made: made.uniform_(),
    "equal": lambda made: made.equal(made),
    "storage": lambda made: made.untyped_storage().tolist(),
    "view": lambda made: made.view(16).cpu(),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_each_access_of_a_tensor_after_its_emulation_is_the_same_error(name, capsys):
    with forebay.emulate("cuda", count=2):
        made = forebay.zeros(4, 4, device="cuda:1")
        graph = forebay.cuda.CUDAGraph()
        kept = [forebay.cuda.MemPool(), graph, forebay.cuda.Stream(), forebay.cuda.Event()]
    error = r"^the emulation of cuda:1 has ended; objects created on the device are unusable$"
    with pytest.raises(WrongState, match=error):
        ACCESSES[name](made)
    del made, kept, graph
    gc.collect()
    assert capsys.readouterr() == ("", "")
