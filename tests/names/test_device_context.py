"""Device arguments: what each spelling denotes, and that resolving one takes at most one call of a Python function."""

from __future__ import annotations

import sys

import pytest

import forebay
from forebay import accelerator, cuda
from forebay.cuda._kind import CUDA
from forebay.mtia._kind import MTIA

RESOLVING = {  # modules that resolve device arguments, and functions elsewhere that do nothing else
    *(
        "forebay.names.kind",
        "forebay._base.device_spec",
        "forebay.runtime.base.lazy_init",
        "forebay.accelerator._utils",
    ),
    *("find_device", "_find_device_to_reset", "_described", "_checked_index", "_checked", "generator", "as_device"),
    "initialised_generator",
    *("_explicit_index", "_open_current_or", "_device_to_allocate_on", "known", "resolve", "current_device"),
}
ELSEWHERE = {"exchange"}  # in those modules: makes a device current
WITHOUT_INDEX = ("kind", "device of the kind")
SPELLINGS = ("index", "name", "device", *WITHOUT_INDEX, "none")
STRICT = {"set_device", "allocate and free", "get_per_process_memory_fraction"}  # need an index, or None


@pytest.fixture
def gpus():
    """Emulate two GPUs, the second of which is current and open."""
    with forebay.emulate("cuda", count=2):
        cuda.set_device(1)
        cuda.init()
        kept = forebay.zeros(1, device="cuda:1")
        yield
        del kept


def allocate_and_free(device):
    cuda.memory.caching_allocator_delete(cuda.memory.caching_allocator_alloc(1024, device))


def enter(device):
    with cuda.device(device):
        pass


FUNCTIONS = {
    **{
        name: getattr(cuda, name)
        for name in (
            *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats"),
            *("memory_stats_as_nested_dict", "reset_peak_memory_stats", "reset_accumulated_memory_stats"),
            *("mem_get_info", "get_per_process_memory_fraction", "synchronize", "current_stream", "default_stream"),
            *("set_device", "get_device_name", "get_device_capability", "get_device_properties", "Stream"),
        )
    },
    "allocate and free": allocate_and_free,
    "with device": enter,
    "accelerator.synchronize": accelerator.synchronize,
    "accelerator.current_stream": accelerator.current_stream,
}


def spelled(spelling: str):
    return {
        "index": 1,
        "name": "cuda:1",
        "device": forebay.device("cuda:1"),
        "kind": "cuda",
        "device of the kind": forebay.device("cuda"),
        "none": None,
    }[spelling]


def calls_of(function, argument) -> list[str]:
    """Return the Python functions that a call executes, after it was called before."""
    called = []

    def note(frame, event, _):
        if event == "call":
            called.append((frame.f_globals["__name__"], frame.f_code.co_name))

    for _ in range(2):
        function(argument)
    sys.setprofile(note)
    try:
        function(argument)
    finally:
        sys.setprofile(None)
    return [name for module, name in called if {module, name} & RESOLVING and name not in ELSEWHERE]


CASES = [
    (name, spelling)
    for name in FUNCTIONS
    for spelling in SPELLINGS
    if (name, spelling) != ("set_device", "none") and not (name in STRICT and spelling in WITHOUT_INDEX)
]


@pytest.mark.parametrize(("name", "spelling"), CASES)
def test_device_argument_is_resolved_in_at_most_one_call(gpus, name, spelling):
    assert len(calls_of(FUNCTIONS[name], spelled(spelling))) <= 1


@pytest.mark.parametrize("spelling", SPELLINGS[:-1])
def test_generator_is_found_in_one_call(gpus, spelling):
    assert len(calls_of(cuda.get_rng_state, spelled(spelling))) == 1


@pytest.mark.parametrize("name", sorted(STRICT))
@pytest.mark.parametrize("spelling", WITHOUT_INDEX)
def test_functions_that_need_an_index_refuse_a_kind(gpus, name, spelling):
    with pytest.raises(ValueError, match=r"Expected a torch\.device with a specified index or an integer"):
        FUNCTIONS[name](spelled(spelling))


def test_spelled_index_parses_names_and_devices():
    names = ("cuda:0", "cuda:9", "cuda:10", "cuda:99")
    assert [CUDA.spelled_index(name) for name in names] == [0, 9, 10, 99]
    assert [CUDA.spelled_index(number) for number in (3, -1, 10**30)] == [3, -1, 10**30]
    assert CUDA.spelled_index(forebay.device("cuda:7")) == 7


@pytest.mark.parametrize(
    "argument",
    [
        *("cuda", "cuda:", "cuda:00", "cuda:01", "cuda:100", "cuda:-1", "cuda:x", "cuda:1x", "cuda:²", "cuda:٣"),
        *("cud:1", "mtia:1", "cpu", True, 1.0, None, object(), forebay.device("cuda"), forebay.device("cpu")),
        forebay.device("mtia:1"),
    ],
)
def test_spelled_index_leaves_other_arguments_to_the_general_path(argument):
    assert CUDA.spelled_index(argument) is None
    assert CUDA.spelled_index(argument, True) is None  # CUDA is not initialised
    assert CUDA.known(argument) is None


def test_argument_without_index_is_the_current_device(gpus):
    for argument in (None, "cuda", forebay.device("cuda")):
        assert CUDA.spelled_index(argument, True) == 1
        assert CUDA.spelled_index(argument) is None
        assert str(CUDA.known(argument).device) == "cuda:1"
    for argument in ("cuda", forebay.device("cuda")):
        assert CUDA.known_by_index(argument) is None
    assert CUDA.known_by_index(None) is CUDA.known_by_index(1) is CUDA.known("cuda:1")
    assert CUDA.known(0) is None  # it is not open
    assert MTIA.known("cuda:1") is MTIA.known(forebay.device("cuda:1")) is MTIA.known(None) is None


def test_device_of_an_ended_emulation_is_not_known():
    with forebay.emulate("cuda"):
        forebay.zeros(1, device="cuda")
        known = CUDA.known(0)
        assert known is CUDA.known(None) is CUDA.known("cuda")
    assert CUDA.known(0) is CUDA.known(None) is CUDA.known("cuda") is CUDA.spelled_index(None, True) is None


def test_context_of_each_spelling_makes_the_device_current(gpus):
    cuda.set_device(0)
    for spelling in ("index", "name", "device"):
        with cuda.device(spelled(spelling)) as entered:
            assert entered is None
            assert cuda.current_device() == 1
        assert cuda.current_device() == 0
    for spelling in ("kind", "device of the kind", "none"):
        assert cuda.device(spelled(spelling)).idx == 0
