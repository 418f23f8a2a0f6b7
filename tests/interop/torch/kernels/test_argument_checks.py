"""Wrong calls of operators end alike with values and without, and mostly with the text of CUDA's kernels."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.nn import functional  # noqa: E402 -- after PyTorch, without which the file is skipped

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

CALLS = (Path(__file__).parents[3] / "data/wrong_calls.txt").read_text().splitlines()
NAMES = {
    "torch": torch, "F": functional, "D": "cuda", "I": torch.int64, "I32": torch.int32, "H": torch.float16,
    "B": torch.bool, "C": torch.complex64, "DB": torch.float64,
    "t": lambda *shape, d="cuda", dt=torch.float32: torch.ones(*shape, device=d, dtype=dt),
}  # fmt: skip
# Calls that end otherwise without values, with the reason.
SPARSE = "which elements are zero is not known"
SIZES = "the kernel compares the sizes first, which differ in the call over single elements"
DIFFERENT = {
    "t(2,3).resize_(-1)": "both are refused, with another text",
    "F.layer_norm(t(2,3,dt=I),(3,))": SIZES,
    "F.grid_sample(t(1,3,4,4),t(1,4,4,2,dt=H))": SIZES,
    "F.embedding_bag(t(3),t(4,5),t(1))": SIZES,
    "F.scaled_dot_product_attention(t(1,2,3,4),t(1,2,3,4),t(1,2,3,4),attn_mask=t(3,3,dt=I))": SIZES,
    "F.interpolate(t(1,3,8,8,dt=I),scale_factor=2,mode='bilinear')": "the operator is not checked",
    "torch.linalg.svd(t(3,3,dt=H))": "the kernel is one of forebay, which computes shapes itself",
    "torch.linalg.eigh(t(3,3,dt=H))": "the kernel is one of forebay, which computes shapes itself",
    "torch.linalg.lstsq(t(3,2),t(4,2))": "the kernel is one of forebay, which computes shapes itself",
    "torch.sparse.mm(t(2,2).to_sparse(),t(3,3))": SPARSE,
    "t(2,2).to_sparse()+t(3,3)": SPARSE,
}


def ends(mode):
    """Return the type and the first line of the error of each call, or None."""
    found = {}
    with warnings.catch_warnings(), forebay.emulate("cuda", count=2, profile="h100"), patch(mode):
        warnings.simplefilter("ignore")
        for call in CALLS:
            try:
                eval(call, dict(NAMES))  # a line of the file above
                found[call] = None
            except Exception as error:  # noqa: BLE001 -- any may be right
                found[call] = type(error).__name__, (str(error).splitlines() or [""])[0]
    return found


@pytest.fixture(scope="module")
def with_values():
    return ends("compute")


def test_wrong_calls_end_alike_with_and_without_values(with_values):
    without = ends("shapes")
    different = {call: (with_values[call], without[call]) for call in CALLS if with_values[call] != without[call]}
    assert different.keys() == DIFFERENT.keys(), {key: different[key] for key in different.keys() ^ DIFFERENT.keys()}
    assert sum(each is None for each in without.values()) < 20  # nearly all calls are wrong


TEXTS = {
    "torch.mm(t(2,3),t(4,5))": "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "F.linear(t(2,3),t(4,5))": "mat1 and mat2 shapes cannot be multiplied (2x3 and 5x4)",
    "torch.bitwise_and(t(3),t(3))": "\"bitwise_and_cuda\" not implemented for 'Float'",
    "F.gelu(t(3,dt=I))": "\"GeluCUDAKernelImpl\" not implemented for 'Long'",
    "torch.erf(t(3,dt=C))": "\"erf_cuda\" not implemented for 'ComplexFloat'",
    "F.softmax(t(2,3,dt=I),1)": "\"host_softmax\" not implemented for 'Long'",
    "t(3).normal_(0,-1)": "normal expects std >= 0.0, but found std -1",
    "torch.multinomial(t(3),4)": "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
    "torch.addcmul(t(3),t((),d='cpu'),t(3))": "CPU Scalar support for tensor1 argument is not supported when calling",
    "t(5).index_put_((t(1,dt=I),),t(1,d='cpu'))": "found at least two devices, cuda:0 and cpu!",
    "t(5).index_put_((t(2,dt=I),),t(3))": "shape [3] cannot be broadcast to indexing result of shape [2]",
    "torch._amp_foreach_non_finite_check_and_unscale_([t(2),t(2,d='cpu')],t(1),t(1))": (
        "but got self is on cpu, different from other tensors on cuda:0"
    ),
}


@pytest.mark.parametrize("call", TEXTS)
def test_errors_have_the_texts_of_cuda(with_values, call):
    assert TEXTS[call] in with_values[call][1]


def test_correct_calls_are_accepted_at_any_size(shapes_only):
    x, places = torch.ones(5, 7, device="cuda"), torch.zeros(5, dtype=torch.int64, device="cuda")
    made = [
        functional.conv2d(torch.ones(1, 3, 9, 9, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda"), padding=1),
        x.narrow(0, 3, 2), x.topk(4), functional.max_pool2d(x[None], 3), x.index_add(0, places, x),
        x.index_put((places,), torch.ones(7, device="cuda")), x.softmax(1), x.multinomial(3), x.scatter(0, x.long(), x),
        functional.layer_norm(x, (7,)), torch.nn.functional.embedding(places, x), x.unfold(0, 3, 1), x.max(1),
    ]  # fmt: skip
    assert len(made) == 13


def test_checks_draw_no_random_numbers(shapes_only):
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    functional.rrelu(torch.ones(2, device="cuda"), training=True)
    functional.dropout(torch.ones(2, device="cuda"))
    assert torch.equal(torch.rand(2), expected)


def test_checks_give_no_warnings_and_use_none_up(shapes_only):
    filters = warnings.filters
    x = torch.ones(5, device="cuda")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        x.std()  # of one element, it would warn
        x.var(0)
        assert not found
        for _ in range(2):  # the filters are the same, so what was shown is not shown again
            warnings.warn("shown once", stacklevel=1)
            x.sub(1)
            x.sub(1.5)
        assert len(found) == 1
    assert warnings.filters is filters
    assert not torch.is_warn_always_enabled()
