"""Values that are known although none are computed: constants, and what is computed from them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- needs torch

CONSTANTS = {
    "from the host": (lambda: torch.tensor([[1, 2], [3, 4]]).cuda(), [[1, 2], [3, 4]]),
    "of a factory": (lambda: torch.full((2,), 7.0, device="cuda"), [7, 7]),
    "a part of a large one": (lambda: torch.ones(1 << 20, device="cuda")[:2], [1, 1]),
    "a range": (lambda: torch.arange(6, device="cuda").view(2, 3)[1], [3, 4, 5]),
    "of another device": (lambda: torch.ones(2, device="cuda:1").to("cuda:0"), [1, 1]),
    "of another type": (lambda: (torch.ones(2, device="cuda").bfloat16() + 1).view(torch.int16), [16384] * 2),
    "conjugated": (lambda: torch.tensor([1 + 2j], device="cuda").conj(), [1 - 2j]),
    "a mask": (lambda: torch.ones(2, 2, device="cuda").tril().bool(), [[True, False], [True, True]]),
    "compared": (lambda: torch.tensor([5, 0, 7]).cuda() != 0, [True, False, True]),
    "of a remainder": (lambda: torch.arange(5, device="cuda") % 3, [0, 1, 2, 0, 1]),
    "sorted": (lambda: torch.tensor([3, 1, 2], device="cuda").sort().indices, [1, 2, 0]),
    "found": (lambda: torch.tensor([0, 3, 0, 4], device="cuda").nonzero(), [[1], [3]]),
    "selected": (lambda: (x := torch.arange(4, device="cuda"))[x > 1], [2, 3]),
    "distinct": (lambda: torch.unique(torch.tensor([2, 1, 2]).cuda()), [1, 2]),
    "repeated": (lambda: torch.arange(2, device="cuda").repeat_interleave(torch.tensor([1, 2]).cuda()), [0, 1, 1]),
    "of an optimizer": (lambda: torch._foreach_add([torch.zeros(2, device="cuda")], 1)[0], [1, 1]),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_what_is_computed_from_constants_is_known(shapes_only, name):
    make, expected = CONSTANTS[name]
    assert make().tolist() == expected


def changed(write):
    x = torch.tensor([1, 2, 3, 4]).cuda()
    write(x)
    return x.tolist()


def test_known_values_are_written(shapes_only):
    assert changed(lambda x: x.add_(1)) == [2, 3, 4, 5]
    assert changed(lambda x: x[1:3].zero_()) == [1, 0, 0, 4]
    assert changed(lambda x: x[1:].copy_(x[:-1].clone())) == [1, 1, 2, 3]
    assert changed(lambda x: torch.mul(x, 2, out=x)) == [2, 4, 6, 8]
    assert changed(lambda x: torch._foreach_add_([x], 1)) == [2, 3, 4, 5]
    assert changed(lambda x: x.index_put_((x == 2,), torch.tensor(9).cuda())) == [1, 9, 3, 4]
    places = torch.tensor([2, 0, 1], device="cuda")
    for write in (lambda x, y: x.scatter_(0, places, y), lambda x, y: x.index_copy_(0, places, y),
                  lambda x, y: x.index_put_((places,), y)):  # fmt: skip
        inverse = torch.empty_like(places)  # no place of it stays
        write(inverse, torch.arange(3, device="cuda"))
        assert inverse.tolist() == [1, 2, 0]
    out = torch.empty(0, dtype=torch.int64, device="cuda")
    torch.add(torch.ones(2, dtype=torch.int64, device="cuda"), 1, out=out)
    assert out.tolist() == [2, 2]


WRITES = {
    "places of an empty tensor": lambda x: (y := torch.empty_like(x)).scatter_(0, x[:1], x[:1]) is y and x.copy_(y),
    "sums of an empty tensor": lambda x: x.copy_(torch.empty_like(x).scatter_(0, x - 1, x, reduce="add")),
    "random numbers": lambda x: x.random_(0, 3),
    "a part": lambda x: x[1:2].random_(0, 3),
    "unknown values": lambda x: x.add_(torch.randint(0, 3, (4,), device="cuda")),
    "a copy": lambda x: x[:2].copy_(torch.randint(0, 3, (2,), device="cuda")),
    "a result": lambda x: torch.mul(torch.randint(0, 3, (4,), device="cuda"), 2, out=x),
}


@pytest.mark.parametrize("name", WRITES)
def test_unknown_values_are_not_taken_for_known_ones(shapes_only, name):
    with pytest.raises(DataDependent):
        changed(WRITES[name])


@pytest.mark.parametrize("make", [
    lambda: torch.empty(2, device="cuda"),
    lambda: torch.randn(2, device="cuda"),
    lambda: torch.nn.functional.dropout(torch.ones(2, device="cuda")),
    lambda: torch.ones(2, device="cuda").resize_(4),
    lambda: torch.randn(2, 3, device="cuda").argmax(1),
])  # fmt: skip
def test_other_values_are_unknown(shapes_only, make):
    with pytest.raises(DataDependent):
        make().tolist()


def test_known_masks_select_unknown_values(shapes_only):
    hidden, mask = torch.randn(2, 3, 5, device="cuda"), torch.tensor([[True, False, True], [False, True, False]])
    assert hidden[mask.cuda()].shape == (3, 5)
    assert hidden[:, torch.tensor([True, False, True]).cuda(), 1:].shape == (2, 2, 4)


def test_large_results_of_constants_are_not_computed(shapes_only):
    large = torch.ones(1, device="cuda").repeat(1 << 34)  # 64 GiB
    assert large.shape == (1 << 34,)


def test_gradients_of_constants_are_known(shapes_only):
    x = torch.full((2,), 3.0, device="cuda", requires_grad=True)
    x.square().sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_gradients_of_constants_are_scaled(shapes_only):
    x, found = torch.tensor([1.0, float("inf")]).cuda(), torch.zeros((), device="cuda")
    torch._amp_foreach_non_finite_check_and_unscale_([x], found, torch.full((), 0.5, device="cuda"))
    assert (x.tolist(), found.item()) == ([0.5, float("inf")], 1)


def test_errors_of_operators_leave_known_values(shapes_only):
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="must match the size"):
        x.add_(torch.ones(2, device="cuda"))
    assert x.tolist() == [1, 1, 1]


def test_conjugated_values_are_written(shapes_only):
    x = torch.zeros(2, dtype=torch.complex64, device="cuda")
    x.conj().copy_(torch.tensor([1j, 2j]))
    assert x.tolist() == [-1j, -2j]
    x.conj().imag.fill_(3)
    assert x.tolist() == [-3j, -3j]


def test_masks_of_the_host_and_of_bytes_are_known(shapes_only):
    values, mask = torch.randn(3, 5, device="cuda"), torch.tensor([True, False, True])
    assert values[mask].shape == (2, 5)
    assert values[mask.to(torch.uint8).cuda()].shape == (2, 5)


def test_a_mask_of_another_shape_is_refused(shapes_only):
    with pytest.raises(IndexError, match=r"The shape of the mask \[3\] at index 0 does not match"):
        torch.randn(4, 5, device="cuda")[torch.tensor([True, False, True]).cuda()]


def test_errors_of_known_values_are_the_operators(shapes_only):
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device="cuda"))


def test_many_repetitions_have_their_size_and_no_values(shapes_only):
    repeated = torch.repeat_interleave(torch.tensor([1 << 31], device="cuda"))  # 16 GiB
    assert repeated.shape == (1 << 31,)
    with pytest.raises(DataDependent):
        repeated[0].item()


def test_elements_that_unknown_masks_choose_are_unknown(shapes_only):
    mask, zeros = torch.randn(3, device="cuda") == 1, torch.zeros(3, device="cuda")
    for made in (torch.where(mask, 5.0, zeros), zeros.masked_fill(mask, 5.0)):
        with pytest.raises(DataDependent):
            made.tolist()


def test_selection_by_a_mask_of_assumed_values_takes_the_same_memory():
    def select():
        t = torch.randn(40, 50, device="cuda")
        t[t > 0].sum() + t.masked_select(t > 0).sum()
        t[t > 0] = torch.ones(1, device="cuda")

    def requested():
        torch.cuda.memory._record_memory_history(max_entries=10_000)
        select()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        return [entry["size"] for entry in trace if entry["action"] == "alloc"]

    found = {}
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="h100"), patch(mode):
            found[mode] = requested()
    places = 40 * 50 * 2 * 8  # of all elements, which are assumed to be true
    assert len(found["compute"]) == len(found["shapes"])
    assert found["shapes"].count(places) == 3
    assert found["shapes"].count(1023) == found["compute"].count(1023) == 3
