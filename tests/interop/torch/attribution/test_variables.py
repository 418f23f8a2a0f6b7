"""Walk over the variables of a program: what it finds, and that it leaves no trace."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay.interop.torch.attribution.variables import _roots, tensors_of_program  # noqa: E402 -- after the check


class Tracked(torch.Tensor):
    """A tensor that can be watched."""


def names_of(wanted):
    return [each.variable for each in tensors_of_program(sys._getframe(1)) if each.tensor is wanted]


def name_of(wanted):
    (found,) = [each.variable for each in tensors_of_program(sys._getframe(1)) if each.tensor is wanted]
    return found


class Slots:
    __slots__ = ("missing", "value")

    def __init__(self, value):
        self.value = value


class Hostile:
    """An object that reports each call of its methods."""

    called: ClassVar[list[str]] = []

    def __init__(self, value):
        object.__setattr__(self, "value", value)

    def __getattribute__(self, name):
        Hostile.called.append(name)
        raise AssertionError(name)

    def __eq__(self, other):
        raise AssertionError("compared")

    def __hash__(self):
        raise AssertionError("hashed")

    def __bool__(self):
        raise AssertionError("asked for its truth")

    def __repr__(self):
        raise AssertionError("shown")


class HostileDict(dict):
    def items(self):
        raise AssertionError("items")

    def __iter__(self):
        raise AssertionError("iterated")

    def __len__(self):
        raise AssertionError("length")


def test_containers_and_attributes_are_named():
    tensors = [torch.ones(1) for _ in range(6)]
    model = torch.nn.Linear(1, 1)
    model.history = [tensors[0]]
    stats = {"loss": [tensors[1]]}
    slots = Slots((tensors[2],))
    partial = functools.partial(print, tensors[3])
    expected = {0: "model.history", 1: "stats['loss']", 2: "slots.value", 3: "partial"}
    held = {position: weakref.ref(tensors[position]) for position in expected}
    tensors.clear()
    for position, name in expected.items():
        assert name_of(held[position]()).name == name
    assert (slots.value, stats, partial) is not None


def test_closure_is_named():
    def make():
        hidden = torch.ones(1)
        return (lambda: hidden), weakref.ref(hidden)

    function, reference = make()
    found = name_of(reference())
    assert (found.name, found.through) == ("hidden", "closure")
    assert "make" in found.detail
    assert callable(function)


def test_traceback_of_an_exception_is_named():
    references = []

    def fail():
        logits = torch.ones(1)
        references.append(weakref.ref(logits))
        raise RuntimeError("no")

    kept = None
    try:
        fail()
    except RuntimeError as error:
        kept = error
    found = name_of(references[0]())
    assert (found.name, found.through, found.detail) == ("logits", "exception", "RuntimeError kept")
    assert isinstance(kept, RuntimeError)


def test_exception_of_an_interactive_session_is_named(monkeypatch):
    references = []

    def fail():
        logits = torch.ones(1)
        references.append(weakref.ref(logits))
        raise RuntimeError("no")

    def store():
        try:
            fail()
        except RuntimeError as error:
            monkeypatch.setattr(sys, "last_value", error, raising=False)

    store()
    found = name_of(references[0]())
    assert (found.name, found.detail) == ("logits", "RuntimeError sys.last_value")


def test_generator_is_read():
    def batches():
        batch = torch.ones(1)
        yield weakref.ref(batch)
        yield batch

    running = batches()
    reference = next(running)
    assert name_of(reference()).name == "running"


def test_variables_are_deleted_as_without_a_walk():
    tensor = torch.ones(1).as_subclass(Tracked)
    reference = weakref.ref(tensor)
    assert names_of(tensor)
    del tensor
    assert reference() is None


def test_function_that_reads_its_variables_keeps_its_dict():
    def outer():
        first = 1
        names = locals()
        walked = [*tensors_of_program(sys._getframe())]
        second = 2
        return names, walked, first, second

    names, *_ = outer()
    assert names == {"first": 1}


def test_method_named_eval_hides_no_variables():
    def outer():
        model = torch.nn.Linear(1, 1).eval()
        extra = torch.ones(1)
        return model, names_of(extra)

    assert [each.name for each in outer()[1]] == ["extra"]


def test_no_code_of_the_program_is_executed():
    hidden, other = torch.ones(1), torch.ones(1)
    held = weakref.ref(hidden), weakref.ref(other)
    holders = [Hostile(hidden), HostileDict(key=other)]
    del hidden, other
    Hostile.called.clear()
    found = [name_of(each()).name for each in held]
    assert found == ["holders.value", "holders"]
    assert Hostile.called == []
    assert holders.__len__() == 2


def test_cycles_and_deep_objects_end():
    ring = []
    ring.append(ring)
    deep = torch.ones(1)
    reference = weakref.ref(deep)
    for _ in range(100):
        deep = [deep]
    assert names_of(reference()) == []
    assert ring[0] is ring


def test_walk_keeps_nothing_alive():
    def outer():
        tensor = torch.ones(1).as_subclass(Tracked)
        found = [*tensors_of_program(sys._getframe())]
        return weakref.ref(tensor), len(found)

    gc.disable()
    try:
        reference, count = outer()
        assert (reference(), count > 0) == (None, True)
    finally:
        gc.enable()


def test_objects_of_forebay_are_not_entered():
    """A session has lists of all that is open, in which a walk would spend most of its objects."""

    class Session(Slots):
        __module__ = "forebay.interop.torch.session"

    class Layer(Slots):
        __module__ = "forebay.interop.torch.extensions.module_stand_ins"

    session, layer = Session(torch.ones(1)), Layer(torch.ones(1))
    assert names_of(session.value) == []
    assert name_of(layer.value).name == "layer.value"


def test_frames_of_a_test_runner_are_not_read():
    functions = {each.variable.function.co_name for each in _roots(sys._getframe()) if each.variable.function}
    functions_of_runner = {"pytest_pyfunc_call", "_multicall", "_hookexec", "_main"}
    held = torch.ones(1)
    assert name_of(held).name == "held"
    assert functions.isdisjoint(functions_of_runner)
