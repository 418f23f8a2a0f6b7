"""Nested tensors with strides: values and gradients are those of the CPU, and nothing ends the process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.nn import functional  # noqa: E402 -- as above

from forebay.errors import ForebayWarning, Unsupported  # noqa: E402 -- as above

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
MASK = torch.tensor([[False, False, True], [False, False, False]])
NESTED = torch.nested


def parts(device):
    torch.manual_seed(0)
    return [torch.randn(length, 4).to(device).requires_grad_() for length in (2, 3)]


OPERATIONS = {
    "multiply": lambda x: x * 2 + x / 3 - x,
    "relu": lambda x: x.relu(),
    "softmax": lambda x: x.softmax(-1),
    "linear": lambda x: functional.linear(x, torch.ones(5, 4).to(x.device)),
    "matmul": lambda x: x.matmul(x.transpose(1, 2)),
    "layer norm": lambda x: functional.layer_norm(x, (4,), *(torch.ones(2, 4) * 2).to(x.device)),
    "gelu": functional.gelu,
    "silu": functional.silu,
    "sum": lambda x: x.sum(-1, keepdim=True),
    "copy": lambda x: x.clone().double().float(),
    "host": lambda x: x.cpu().to(x.device),
    "select": lambda x: torch.nested.as_nested_tensor([x.select(0, 1)]),
    "views": lambda x: x.unsqueeze(-1).squeeze(-1).transpose(1, 2),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_are_those_of_the_cpu(emulated, name):
    results = []
    for device in ("cuda", "cpu"):
        given = parts(device)
        made = OPERATIONS[name](NESTED.as_nested_tensor(given))
        assert made.device.type == device
        torch.cat([each.reshape(-1) for each in made.unbind()]).square().sum().backward()
        results.append([each.detach().cpu() for each in (*made.unbind(), *(part.grad for part in given))])
    torch.testing.assert_close(*results)


def test_nested_tensors_are_padded_and_made_from_masks(emulated):
    padded = NESTED.to_padded_tensor(NESTED.as_nested_tensor(given := parts("cuda")), -1.0)
    assert padded.is_cuda
    assert padded[0, 2].tolist() == [-1] * 4
    padded.sum().backward()
    assert given[0].grad.tolist() == torch.ones(2, 4).tolist()
    made = torch._nested_tensor_from_mask(torch.ones(2, 3, 4, device="cuda"), ~MASK.cuda())
    assert [each.shape[0] for each in made.unbind()] == [2, 3]


def test_writes_go_to_the_buffer(emulated):
    x = NESTED.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda")
    x.mul_(3)
    assert [each.tolist() for each in x.unbind()] == [[3] * 2, [3] * 3]
    x.unbind()[1].zero_()
    assert [each.tolist() for each in x.cpu().unbind()] == [[3] * 2, [0] * 3]


def test_the_memory_is_that_of_the_buffer(emulated):
    x = NESTED.nested_tensor([torch.ones(100), torch.ones(200)], device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = x * 2
    assert (before, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (1536, 3072, 3072)
    del x, y
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_nested_tensors_with_gradients_are_made(request, mode):
    request.getfixturevalue(mode)
    on_host = parts("cpu")
    for made in (
        NESTED.as_nested_tensor(parts("cuda")),
        NESTED.as_nested_tensor(on_host, device="cuda"),
        NESTED.as_nested_tensor(on_host).cuda(),
        NESTED.nested_tensor(parts("cpu"), device="cuda", requires_grad=True),
    ):
        assert (made.is_nested, made.is_cuda, made.requires_grad) == (True, True, True)
        assert [each.shape for each in made.detach().unbind()] == [(2, 4), (3, 4)]


def test_operators_without_values_are_refused(shapes_only):
    x = NESTED.as_nested_tensor(parts("cuda"))
    with pytest.raises(Unsupported, match=r"create them with layout=torch\.jagged, or run with --compute"):
        x * 2


def test_a_transformer_computes_its_padding_in_evaluation(emulated):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, given = torch.nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 3, 16)
    with torch.no_grad():
        expected = model(given, src_key_padding_mask=MASK)
        with pytest.warns(ForebayWarning, match="a transformer that would drop its padding in evaluation computes it"):
            found = model.cuda()(given.cuda(), src_key_padding_mask=MASK.cuda())
    torch.testing.assert_close(found.cpu()[~MASK], expected[~MASK])
