"""Emulated CUDA, MPS and MTIA devices and the CPU device in one process, and forebay.accelerator on each kind."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

import forebay
from forebay import accelerator, cuda, mtia

COUNTS = {"cuda": 2, "mps": 1, "mtia": 2, "cpu": 1}
EMULATED = [kind for kind in COUNTS if kind != "cpu"]
DEVICES = [f"{kind}:{index}" for kind, count in COUNTS.items() if kind != "cpu" for index in range(count)] + ["cpu"]
MODULES = {"cuda": cuda, "mtia": mtia}  # those with the function names of forebay.accelerator

every_kind = pytest.mark.parametrize("kind", COUNTS)
every_accelerator = pytest.mark.parametrize("kind", EMULATED)


@pytest.fixture(autouse=True)
def three_kinds():
    with (
        forebay.use_device("cpu"),
        forebay.emulate("cuda", count=2, memory="64MiB"),
        forebay.emulate("mps", memory="64MiB"),
        forebay.emulate("mtia", count=2, memory="64MiB"),
    ):
        yield


def sevens(device, n=1000):
    return forebay.full((n,), 7, dtype=np.uint8, device=device)


def in_thread(work):
    """Return the result of `work` in a new thread, which has no current device yet."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    return results[0]


# The accelerator


@every_accelerator
def test_accelerator_is_the_kind_of_the_current_device(kind):
    forebay.set_device(f"{kind}:0")
    assert accelerator.current_accelerator() == accelerator.current_accelerator(True) == forebay.device(kind)
    assert accelerator.device_count() == forebay.device_count(kind) == COUNTS[kind]
    assert accelerator.is_available()
    assert accelerator.current_device_index() == 0
    if kind in MODULES:
        module = MODULES[kind]
        assert (module.device_count(), module.is_available(), module.current_device()) == (COUNTS[kind], True, 0)


@pytest.mark.parametrize("kind", MODULES)
def test_accelerator_and_module_share_the_current_device(kind):
    module = MODULES[kind]
    module.set_device(1)
    assert (accelerator.current_device_index(), accelerator.current_accelerator().type) == (1, kind)
    accelerator.set_device_index(f"{kind}:0")
    assert module.current_device() == 0
    with accelerator.device_index(1):
        assert module.current_device() == forebay.current_device().index == 1
    with module.device(1):
        assert accelerator.current_device_index() == 1
    assert module.current_device() == accelerator.current_device_index() == 0


@every_accelerator
def test_accelerator_statistics_are_those_of_the_kind(kind):
    device = f"{kind}:{COUNTS[kind] - 1}"
    forebay.set_device(device)
    gc.collect()  # free tensors of other tests on the CPU device
    accelerator.empty_cache()  # complete frees that were deferred because other queues used the memory
    accelerator.reset_peak_memory_stats()
    before, block = accelerator.memory_allocated(), forebay.allocate(3 << 20, device)
    stats = forebay.memory.memory_stats(device)
    assert accelerator.memory_stats() == {key: stats[key] for key in accelerator.memory_stats()}
    assert accelerator.memory_allocated() == accelerator.max_memory_allocated(device) == before + (3 << 20)
    assert accelerator.memory_reserved() == forebay.memory.memory_reserved(device) >= before + block.size
    assert accelerator.max_memory_reserved() == forebay.memory.max_memory_reserved(device)
    assert accelerator.get_memory_info(device)[1] == forebay.memory.mem_get_info(device)[1]
    if kind in MODULES:
        module = MODULES[kind]
        assert accelerator.memory_allocated() == module.memory_allocated() == module.max_memory_allocated(device)
    block.free()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    assert accelerator.max_memory_allocated() == accelerator.memory_allocated() == before
    assert accelerator.memory_stats()["allocated_bytes.all.allocated"] == 0


@every_accelerator
def test_accelerator_streams_are_those_of_the_kind(kind):
    forebay.set_device(f"{kind}:0")
    stream = forebay.Stream(kind)
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == accelerator.current_stream(0) == forebay.current_stream(kind) == stream
    if kind in MODULES:
        assert MODULES[kind].current_stream().stream_id == stream.stream_id
    gate = threading.Event()
    stream.queue.call(lambda: gate.wait(60))
    assert not stream.query()
    gate.set()
    accelerator.synchronize()
    assert stream.query()
    accelerator.set_stream(forebay.default_stream(kind))


@every_accelerator
def test_accelerator_seeds_are_those_of_the_kind(kind):
    forebay.set_device(f"{kind}:0")
    forebay.random.manual_seed_all(11, kind)
    states = accelerator.random.get_rng_state_all()
    assert len(states) == COUNTS[kind]
    assert accelerator.random.get_rng_state().tolist() == states[0].tolist()
    assert forebay.random.get_rng_state(kind).tolist() == states[0].tolist()
    assert accelerator.random.initial_seed() == forebay.random.initial_seed(kind) == 11
    if kind in MODULES:
        assert MODULES[kind].initial_seed() == 11


@every_accelerator
def test_accelerator_graph_captures_on_the_kind(kind):
    forebay.set_device(f"{kind}:0")
    graph, numbers = accelerator.Graph(), forebay.zeros(3, device=kind)
    with forebay.Stream(), graph:
        numbers.fill_(7)
    assert numbers.tolist() == [0] * 3
    graph.replay()
    assert numbers.tolist() == [7] * 3


@every_accelerator
def test_accelerator_rejects_other_kinds_and_missing_devices(kind):
    forebay.set_device(f"{kind}:0")
    for other in COUNTS.keys() - {kind}:
        with pytest.raises(ValueError, match=f"{other} doesn't match the current accelerator {kind}"):
            accelerator.set_device_index(f"{other}:0")
    for use in (accelerator.set_device_index, accelerator.synchronize, accelerator.get_memory_info):
        with pytest.raises(forebay.DeviceError, match=f"{kind.upper()} error: invalid device ordinal"):
            use(COUNTS[kind])
    assert accelerator.set_device_index(-1) is None
    assert accelerator.current_device_index() == 0


# All kinds together


def test_best_kind_is_current_by_default():
    assert in_thread(forebay.current_device) == forebay.device("cuda:0")
    assert in_thread(lambda: accelerator.current_accelerator().type) == "cuda"


@pytest.mark.parametrize(("source", "target"), list(itertools.product(DEVICES, DEVICES)))
def test_copies_between_all_devices(source, target):
    source_tensor, target_tensor = sevens(source), forebay.zeros(1000, dtype=np.uint8, device=target)
    assert set(target_tensor.copy_(source_tensor).tolist()) == set(source_tensor.to(target).tolist()) == {7}
    assert forebay.current_device() == forebay.device("cpu")


def test_copy_is_ordered_after_work_on_both_devices():
    """A blocked stream fills the source; a stream of another kind copies to the target."""
    gate, filling, reading = threading.Event(), forebay.Stream("cuda:1"), forebay.Stream("mtia:1")
    source, target = forebay.zeros(9, device="cuda:1"), forebay.zeros(9, device="mtia:1")
    filling.wait_stream(forebay.current_stream("cuda:1"))
    reading.wait_stream(forebay.current_stream("mtia:1"))
    filling.queue.call(lambda: gate.wait(60))
    threading.Timer(0, gate.set).start()
    with filling:
        source.fill_(7)
        with reading:
            target.copy_(source)
            assert target.tolist() == [7] * 9


@pytest.mark.parametrize(("first", "second"), list(itertools.product(DEVICES, DEVICES)))
def test_streams_wait_for_events_of_any_kind(first, second):
    ahead, behind, done = forebay.Stream(first), forebay.Stream(second), []
    ahead.queue.call(lambda: done.append("ahead"))
    behind.wait_event(ahead.record_event())
    behind.queue.call(lambda: done.append("behind"))
    ahead.wait_stream(behind)
    ahead.queue.call(lambda: done.append("again"))
    ahead.synchronize()
    assert done == ["ahead", "behind", "again"]


def test_event_belongs_to_one_device():
    event = forebay.Event(enable_timing=True)
    event.record(forebay.Stream("mps"))
    with pytest.raises(RuntimeError, match="Event device type MPS does not match recording stream's device type MTIA"):
        event.record(forebay.Stream("mtia"))


def test_current_device_is_per_kind():
    cuda.set_device(1)
    mtia.set_device(1)
    assert (cuda.current_device(), mtia.current_device()) == (1, 1)
    assert forebay.current_device() == forebay.device("mtia:1")
    mtia.set_device(0)
    assert [forebay.empty(1, device=kind).device.index for kind in COUNTS] == [1, 0, 0, None]


def test_contexts_nest_across_kinds():
    devices = ["cpu"]
    with cuda.device(1):
        devices.append(str(forebay.current_device()))
        with mtia.device(1), forebay.use_device("mps"):
            devices.append(str(forebay.current_device()))
            with cuda.stream(cuda.Stream(0)):
                devices.append((str(forebay.current_device()), mtia.current_device()))
                with mtia.stream(mtia.Stream("mtia:0")):
                    devices.append((str(forebay.current_device()), cuda.current_device()))
            devices.append((str(forebay.current_device()), cuda.current_device(), mtia.current_device()))
        devices.append(str(forebay.current_device()))
    assert devices == ["cpu", "cuda:1", "mps:0", ("cuda:0", 1), ("mtia:0", 0), ("mps:0", 1, 1), "cuda:1"]
    assert (str(forebay.current_device()), cuda.current_device(), mtia.current_device()) == ("cpu", 0, 0)


@pytest.mark.parametrize("context", [lambda: mtia.device(1), lambda: mtia.stream(mtia.Stream("mtia:1"))])
def test_default_current_device_is_restored(context):
    def use_context():
        with context():
            inside = forebay.current_device()
        return str(inside), str(forebay.current_device())

    assert in_thread(use_context) == ("mtia:1", "cuda:0")


def test_current_stream_is_per_kind():
    streams = {kind: forebay.Stream(kind) for kind in COUNTS}
    for stream in streams.values():
        forebay.set_stream(stream)
    assert {kind: forebay.current_stream(kind) for kind in COUNTS} == streams
    for kind in COUNTS:
        forebay.set_stream(forebay.default_stream(kind))


def test_statistics_are_per_device():
    blocks = {device: forebay.allocate((index + 1) << 20, device) for index, device in enumerate(DEVICES[:-1])}
    assert {device: forebay.memory.memory_allocated(device) for device in blocks} == {
        device: (index + 1) << 20 for index, device in enumerate(blocks)
    }
    assert [cuda.memory_allocated(0), cuda.memory_allocated(1)] == [1 << 20, 2 << 20]
    assert [mtia.memory_allocated(0), mtia.memory_allocated(1)] == [4 << 20, 5 << 20]
    with pytest.raises(forebay.OutOfMemory, match="MTIA out of memory"):
        forebay.allocate(60 << 20, "mtia:1")
    assert [forebay.memory.memory_stats(device)["num_ooms"] for device in blocks] == [0, 0, 0, 0, 1]
    for block in blocks.values():
        block.free()
    cuda.empty_cache()
    assert [forebay.memory.memory_reserved(device) == 0 for device in blocks] == [True, True, False, False, False]


def test_seeds_apply_to_one_kind_or_to_all():
    cuda.manual_seed_all(3)
    mtia.manual_seed_all(4)
    assert [cuda.initial_seed(), mtia.initial_seed()] == [3, 4]
    forebay.manual_seed(5)
    assert [forebay.random.initial_seed(device) for device in DEVICES] == [5] * len(DEVICES)
    drawn = [forebay.rand(8, device=device).tolist() for device in DEVICES]
    assert drawn == [drawn[0]] * len(drawn)  # small draws do not depend on the launch geometry


def test_end_of_one_kind_keeps_the_others():
    tensor, _ = sevens("mtia:1"), sevens("mps")
    with pytest.raises(forebay.WrongState, match="devices of kind 'mps' are in use"):
        forebay.emulate("mps")
    with forebay.use_device("mtia:1"):
        forebay.runtime.lifecycle.emulation.reset_kind("mps")
        assert forebay.current_device() == forebay.device("mtia:1")
    assert set(tensor.tolist()) == set(sevens("cuda:1").tolist()) == {7}


def test_kinds_are_initialised_separately():
    mtia.init()
    assert (mtia.is_initialized(), cuda.is_initialized()) == (True, False)


def test_capture_forbids_synchronization_of_its_own_kind_only():
    graph, numbers = mtia.MTIAGraph(), forebay.zeros(3, device="mtia:0")
    sevens("cuda:0")
    with mtia.graph(graph, stream=mtia.Stream("mtia:0")):
        numbers.fill_(7)
        cuda.synchronize()
        assert cuda.current_stream().query()
    graph.replay()
    assert numbers.tolist() == [7] * 3


def test_threads_use_different_kinds():
    failures = []

    def work(device):
        try:
            with forebay.use_device(device):
                for value in range(50):
                    with forebay.Stream(device):
                        made = forebay.full((1000,), value % 7, dtype=np.uint8)
                        assert made.device == forebay.device(device)
                        assert set(made.to("cpu").tolist()) == {value % 7}
        except BaseException as error:  # noqa: BLE001 -- reported by the test
            failures.append((device, error))

    threads = [threading.Thread(target=work, args=(device,), daemon=True) for device in DEVICES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
