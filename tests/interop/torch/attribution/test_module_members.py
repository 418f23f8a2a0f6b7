"""Members of modules by name: as PyTorch names them, without a call of the program's methods."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay.interop.torch.attribution import module_members as members  # noqa: E402 -- after the test for PyTorch


def model():
    shared = torch.nn.Linear(2, 2)
    found = torch.nn.Sequential(
        shared, torch.nn.BatchNorm1d(2), torch.nn.ModuleDict({"a": shared, "b": torch.nn.GRU(2, 2)})
    )
    found.absent = None
    found.register_module("nothing", None)
    found[1].extra = found[0].weight
    return found


@pytest.mark.parametrize("name", ["named_modules", "named_parameters", "named_buffers"])
def test_names_are_those_of_pytorch(name):
    given = model()
    expected = [*getattr(given, name)()]
    found = [*getattr(members, name)(given)]
    assert [each for each, _ in found] == [each for each, _ in expected]
    assert all(one is other for (_, one), (_, other) in zip(found, expected, strict=True))


class Overridden(torch.nn.Linear):
    __hash__ = None

    def named_parameters(self, *_, **__):
        raise AssertionError("called")

    def __eq__(self, other):
        raise AssertionError("compared")


def test_no_method_of_the_module_is_called():
    given = torch.nn.Module()
    given.inner = Overridden(2, 2)
    assert [name for name, _ in members.named_parameters(given)] == ["inner.weight", "inner.bias"]


def test_module_without_init_has_nothing():
    assert [*members.named_parameters(torch.nn.Module.__new__(torch.nn.Module))] == []
