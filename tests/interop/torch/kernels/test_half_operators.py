"""PyTorch's samples of all operators in half precision: what CUDA computes is computed, near single precision."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
pytest.importorskip("expecttest", reason="PyTorch's testing package needs expecttest")

from support.operator_names import RANDOM_OPERATORS, UNDEFINED_OPERATORS  # noqa: E402 -- as above
from support.operator_samples import samples_of  # noqa: E402 -- after PyTorch
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402 -- after PyTorch

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.complex32: 6e-3}
SAMPLES = 3  # of each operator and type

RANDOM = "its numbers are random: it only runs"
UNDEFINED = "its values are undefined"
ROUNDED = "consists of operators whose results are rounded, on a GPU, too"
# Operators that run, but whose values are not compared.
NOT_COMPARED = {
    **dict.fromkeys(("nansum", "nanmean"), "the CPU lacks it for complex numbers: see test_missing_on_host.py"),
    **dict.fromkeys(RANDOM_OPERATORS, RANDOM),
    **dict.fromkeys(UNDEFINED_OPERATORS, UNDEFINED),
    **dict.fromkeys(
        ("addbmm", "matrix_exp", "nn.functional.soft_margin_loss", "nn.functional.hinge_embedding_loss",
         "nn.functional.conv_transpose2d", "nn.functional.conv_transpose3d", "logcumsumexp", "logaddexp", "pow",
         "nn.functional.grid_sample", "stft", "istft", "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"),
        ROUNDED,
    ),
    "_unsafe_masked_index_put_accumulate": "the CPU adds in a half",
    "native_batch_norm": "in evaluation, CUDA's kernel returns statistics of another shape than the CPU's",
    "_native_batch_norm_legit": "as native_batch_norm",
    **dict.fromkeys(
        ("torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward",
         "_softmax_backward_data"), "the CPU has no such operator for single precision: it only runs",
    ),
}  # fmt: skip
# Operators that do not run.
REFUSED = {
    "as_strided.partial_views": "the sample reads elements of its storage that a copy to a device does not contain",
    "tensor_split": "the sample's indices must be on the CPU, as on a GPU",
    "sparse.mm.reduce": "only the CPU has it",
    "jiterator_unary": "compiles CUDA code", "jiterator_binary": "compiles CUDA code",
    "jiterator_4inputs_with_extra_args": "compiles CUDA code", "jiterator_2inputs_2outputs": "compiles CUDA code",
    "jiterator_binary_return_by_ref": "compiles CUDA code",
}  # fmt: skip


def name_of(operator):
    return operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")


OPERATORS = {name_of(each): each for each in op_db if WIDE.keys() & set(each.dtypesIfCUDA)}


def convert(argument, function):
    if isinstance(argument, torch.Tensor):
        return function(argument.detach()).requires_grad_(argument.requires_grad)
    if isinstance(argument, (list, tuple)):
        converted = [convert(each, function) for each in argument]
        return type(argument)(*converted) if hasattr(argument, "_fields") else type(argument)(converted)
    return WIDE.get(argument, argument) if function is widen and isinstance(argument, torch.dtype) else argument


def widen(tensor):
    return tensor.to(WIDE.get(tensor.dtype, tensor.dtype))


def tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [each for part in result for each in tensors(part)] if isinstance(result, (list, tuple)) else []


def scalar(each):
    return each.abs().sum() if each.is_complex() else widen(each).sum()


def gradients(results, arguments):
    outputs = [scalar(each) for each in results if each.requires_grad and each.layout is torch.strided]
    inputs = [each for each in tensors(arguments) if each.requires_grad]
    return torch.autograd.grad(outputs, inputs, allow_unused=True) if outputs and inputs else ()


def compare(made, expected, tolerance):
    for one, other in zip(made, expected, strict=True):
        if one is None or other is None:
            continue
        found, wanted = (each.detach().cpu() for each in (one, other))
        if found.layout is not torch.strided:
            found, wanted = found.to_dense(), wanted.to_dense()
        rounded = wanted.to(found.dtype) if found.dtype in WIDE else wanted  # overflows as the result
        torch.testing.assert_close(
            widen(found), widen(rounded), rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False,
            check_dtype=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def device():
    """An emulated device for all tests below."""
    with forebay.emulate("cuda", profile="h100"), patch():
        yield


def run(operator, arguments, keywords, *, differentiable):
    """Return the results, and the gradients."""
    named = {key: "cuda" if key == "device" else convert(each, cuda) for key, each in keywords.items()}
    made = tensors(operator(*(copies := convert(arguments, cuda)), **named))
    return made, gradients(made, (*copies, *named.values())) if differentiable else ()


def cuda(tensor):
    return tensor.cuda()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_cuda_compute_halves(device, name):
    operator = OPERATORS[name]
    for dtype in WIDE.keys() & set(operator.dtypesIfCUDA):
        torch.manual_seed(0)
        differentiable = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cuda")
        for sample in samples_of(operator, dtype, SAMPLES, requires_grad=differentiable):
            arguments, keywords = (sample.input, *sample.args), sample.kwargs
            if name in REFUSED:
                continue
            made, found = run(operator, arguments, keywords, differentiable=differentiable)
            if name in NOT_COMPARED:
                continue
            single, named = convert(arguments, widen), {key: convert(each, widen) for key, each in keywords.items()}
            expected = tensors(operator(*single, **named))
            compare(made, expected, TOLERANCES[dtype])
            if differentiable:
                compare(found, gradients(expected, (*single, *named.values())), 4 * TOLERANCES[dtype])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_do_not_run_are_listed_as_such(device, name):
    operator, errors = OPERATORS[name], 0
    for dtype in WIDE.keys() & set(operator.dtypesIfCUDA):
        for sample in operator.sample_inputs("cpu", dtype):
            try:
                run(operator, (sample.input, *sample.args), sample.kwargs, differentiable=False)
            except Exception:  # noqa: BLE001 -- any failure counts
                errors += 1
    assert errors
