"""`repr` of tensors, compared with PyTorch 2.15, and of tensors whose values cannot be read."""

from __future__ import annotations

import pytest
from support.markup import check_markup

import forebay

pytestmark = pytest.mark.usefixtures("clean")

ROW = "1., 1., 1.,  ..., 1., 1., 1."
TORCH_TEXTS = {  # recorded from PyTorch 2.15, with `torch` for `forebay`
    "tensor([1.5, 2.25])": "tensor([1.5000, 2.2500])",
    "tensor(1.5)": "tensor(1.5000)",
    "tensor([1., 2.])": "tensor([1., 2.])",
    "tensor([[1, 2], [3, 4]])": "tensor([[1, 2],\n        [3, 4]])",
    "tensor([1, 2], dtype=forebay.int32)": "tensor([1, 2], dtype=forebay.int32)",
    "tensor([1., 2.5], dtype=forebay.float64)": "tensor([1.0000, 2.5000], dtype=forebay.float64)",
    "tensor([True, False])": "tensor([ True, False])",
    "tensor([True])": "tensor([True])",
    "empty(0)": "tensor([])",
    "empty(2, 0)": "tensor([], size=(2, 0))",
    "empty(0, dtype=forebay.int64)": "tensor([], dtype=forebay.int64)",
    "tensor([1e10, 1.])": "tensor([1.0000e+10, 1.0000e+00])",
    "arange(2000)": "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])",
    "zeros(1100, 2)": "tensor([[0., 0.],\n        [0., 0.],\n        [0., 0.],\n        ...,\n        [0., 0.],\n"
    "        [0., 0.],\n        [0., 0.]])",
    "ones(1, 2, 600)": f"tensor([[[{ROW}],\n         [{ROW}]]])",
    "tensor([-1.5, 0.])": "tensor([-1.5000,  0.0000])",
    "tensor([1e-5, 1.])": "tensor([1.0000e-05, 1.0000e+00])",
    "tensor([1.5], dtype=forebay.float16)": "tensor([1.5000], dtype=forebay.float16)",
    "tensor([1], dtype=forebay.uint8)": "tensor([1], dtype=forebay.uint8)",
    "tensor([1.5, 2], dtype=forebay.bfloat16)": "tensor([1.5000, 2.0000], dtype=forebay.bfloat16)",
}


@pytest.mark.parametrize(("source", "text"), TORCH_TEXTS.items())
def test_repr_matches_pytorch(source, text):
    assert repr(eval(f"forebay.{source}")) == text


def test_repr_contains_the_device(emulated):
    assert repr(forebay.ones(3, device="cuda:1")) == "tensor([1., 1., 1.], device='cuda:1')"


def test_repr_of_a_large_tensor_reads_only_its_ends():
    with forebay.emulate("cuda", profile="h200"):
        large = forebay.empty(1 << 17, 1 << 17, device="cuda", dtype=forebay.uint8)[::2, ::2]
        assert repr(large).startswith("tensor([[0, 0, 0,  ..., 0, 0, 0],")


def test_repr_during_a_capture_reads_no_values():
    with forebay.emulate("cuda"):
        numbers = forebay.ones(3, device="cuda")
        with forebay.cuda.graph(forebay.cuda.CUDAGraph()):
            numbers.fill_(2)
            assert repr(numbers) == "<forebay.Tensor shape=(3,) dtype=forebay.float32 device=cuda:0>"


def test_repr_after_the_end_of_an_emulation_reads_no_values():
    with forebay.emulate("cuda"):
        numbers = forebay.ones(3, device="cuda")
    assert repr(numbers) == "<forebay.Tensor shape=(3,) dtype=forebay.float32 device=cuda:0>"


def test_html_has_properties_and_text():
    markup = forebay.tensor([[1, 2], [3, 4]])[:, :1]._repr_html_()
    check_markup(markup)
    for text in ("2 by 1", "forebay.int64", "16 B", "2, 1", "tensor([[1],\n        [3]])"):
        assert text in markup


def test_html_of_a_large_tensor_reads_only_its_ends():
    with forebay.emulate("cuda", profile="h200"):
        large = forebay.empty(1 << 17, 1 << 17, device="cuda", dtype=forebay.uint8)[::2, ::2]
        assert "tensor([[0, 0, 0,  ..., 0, 0, 0]," in large._repr_html_()


def test_html_without_values():
    with forebay.emulate("cuda"):
        numbers = forebay.ones(3, device="cuda")
        with forebay.cuda.graph(forebay.cuda.CUDAGraph()):
            numbers.fill_(2)
            assert "&lt;forebay.Tensor shape=(3,)" in numbers._repr_html_()
    check_markup(numbers._repr_html_())  # the emulation has ended


def test_html_shows_a_failure_of_queued_work(fake):
    numbers = forebay.ones(3, device="fake:0")
    forebay.synchronize("fake:0")
    fake.ports[0].fail_work("copy")
    markup = numbers._repr_html_()
    check_markup(markup)
    assert "The values cannot be read: DeviceError: " in markup
