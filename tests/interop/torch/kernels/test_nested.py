"""Nested tensors: transformers keep their padding, and those with strides are refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay.errors import ForebayWarning, Unsupported  # noqa: E402 -- as above

MASK = torch.tensor([[False, False, True], [False, False, False]])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_computes_its_padding_in_evaluation(emulated):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, given = torch.nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 3, 16)
    with torch.no_grad():
        expected = model(given, src_key_padding_mask=MASK)
        with pytest.warns(ForebayWarning, match="emulated devices have no nested tensors with strides"):
            found = model.cuda()(given.cuda(), src_key_padding_mask=MASK.cuda())
    torch.testing.assert_close(found.cpu()[~MASK], expected[~MASK])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_with_strides_are_refused(emulated):
    with pytest.raises(Unsupported, match=r"create them with layout=torch\.jagged"):
        torch._nested_tensor_from_mask(torch.ones(2, 3, 4, device="cuda"), ~MASK.cuda())
