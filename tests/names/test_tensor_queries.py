"""`is_tensor`, `is_floating_point`, `equal` and other queries under PyTorch's top-level names."""

from __future__ import annotations

import pytest

import forebay


@pytest.mark.parametrize(
    ("dtype", "floating", "complex_"),
    [("float32", True, False), ("bfloat16", True, False), ("complex64", False, True), ("int64", False, False),
     ("bool", False, False)],
)  # fmt: skip
def test_queries_of_the_element_type(dtype, floating, complex_):
    empty = forebay.empty(2, dtype=getattr(forebay, dtype))
    assert (forebay.is_floating_point(empty), forebay.is_complex(empty)) == (floating, complex_)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
def test_tensors_and_storages_are_told_apart():
    tensor = forebay.zeros(2)
    objects = [tensor, tensor.storage(), tensor.untyped_storage(), tensor.numpy(), None]
    assert [forebay.is_tensor(each) for each in objects] == [True, False, False, False, False]
    assert [forebay.is_storage(each) for each in objects] == [False, True, True, False, False]


def test_equal_compares_shape_and_elements():
    ones = forebay.ones(2, 3)
    assert forebay.equal(ones, forebay.ones(2, 3))
    assert not forebay.equal(ones, forebay.zeros(2, 3))
    assert not forebay.equal(ones, forebay.ones(3, 2))


@pytest.mark.parametrize(
    ("arguments", "name", "position", "kind"),
    [((3, None), "input", 1, "int"), ((None, 3), "input", 1, "NoneType"), (("tensor", [1]), "other", 2, "list")],
)
def test_equal_names_the_argument_that_is_no_tensor(arguments, name, position, kind):
    given = [forebay.zeros(1) if each == "tensor" else each for each in arguments]
    with pytest.raises(TypeError) as caught:
        forebay.equal(*given)
    assert str(caught.value) == f"equal(): argument '{name}' (position {position}) must be Tensor, not {kind}"
