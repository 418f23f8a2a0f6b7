"""Settings of matrix products, beyond the comparison with PyTorch in tests/names/scenes/kernel_settings.py."""

from __future__ import annotations

import pytest

import forebay
from forebay import _C

matmul = forebay.backends.cuda.matmul


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    for name in ("fp16_reduction", "bf16_reduction"):
        monkeypatch.setattr(matmul, name, (True, True))


@pytest.mark.parametrize(("name", "other"), [("fp16", "bf16"), ("bf16", "fp16")])
def test_reduction_is_set_for_one_type_and_may_be_split_again(name, other):
    attribute = f"allow_{name}_reduced_precision_reduction"
    read, write = (getattr(_C, f"_{verb}_cublas_{attribute}") for verb in ("get", "set"))
    write(False, False)
    assert (read(), getattr(matmul, attribute)) == ((False, False), False)
    setattr(matmul, attribute, False)
    assert (read(), getattr(matmul, attribute)) == ((False, True), False)
    assert getattr(matmul, f"allow_{other}_reduced_precision_reduction") is True
    setattr(matmul, attribute, True)
    assert (read(), getattr(matmul, attribute)) == ((True, True), True)
