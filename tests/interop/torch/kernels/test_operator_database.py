"""PyTorch's own samples of all operators (its OpInfo database).

Values and gradients are those of the CPU; shapes, dtypes, strides and memory are the same with values and without.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
pytest.importorskip("expecttest", reason="PyTorch's testing package needs expecttest")

from support.operator_names import RANDOM_OPERATORS, UNDEFINED_OPERATORS  # noqa: E402 -- as above
from support.operator_samples import samples_of  # noqa: E402 -- as above
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402 -- as above

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above

SAMPLES = 3  # of each operator
SECONDS = 60  # for each operator, on a busy machine

RANDOM = "its numbers are the GPU's, not the CPU's"
UNDEFINED = "its values are undefined"
EXCLUDED = {
    **dict.fromkeys(RANDOM_OPERATORS, RANDOM),
    **dict.fromkeys(UNDEFINED_OPERATORS, UNDEFINED),
    "as_strided.partial_views": "the sample reads elements of its storage that a copy to a device does not contain",
    "tensor_split": "the sample's indices must be on the CPU, as on a GPU",
    "to": "the sample names the CPU as the destination",
    "native_batch_norm": "in evaluation, CUDA's kernel returns statistics of another shape than the CPU's",
    "_native_batch_norm_legit": "as native_batch_norm",
    "linalg.eig": "eigenvectors are defined up to a phase",
    **dict.fromkeys(("histogram", "histogramdd", "sparse.mm.reduce"), "only the CPU has it"),
    "torch._scaled_mm": "the result's dtype has no tolerances",
}  # fmt: skip


def name_of(operator):
    return operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")


# PyTorch's meta kernel has other strides than its kernel for the CPU.
OTHER_STRIDES = {"fft.rfftn", "nonzero_static", "pca_lowrank", "svd_lowrank"}

OPERATORS = {name_of(each): each for each in op_db if name_of(each) not in EXCLUDED}


def convert(argument):
    if isinstance(argument, torch.Tensor):
        return argument.detach().cuda().requires_grad_(argument.requires_grad)
    if isinstance(argument, (list, tuple)):
        converted = [convert(each) for each in argument]
        return type(argument)(*converted) if hasattr(argument, "_fields") else type(argument)(converted)
    return argument


def tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [each for part in result for each in tensors(part)] if isinstance(result, (list, tuple)) else []


def compare(made, expected, tolerance):
    for one, other in zip(made, expected, strict=True):
        if other is not None:
            assert one.is_cuda or not one.numel()
            torch.testing.assert_close(
                one.detach().cpu(), other.detach(), rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
            )


def scalar(each):
    return each.abs().sum() if each.is_complex() else each.sum()


def gradients(results, arguments):
    outputs = [scalar(each) for each in results if each.requires_grad]
    inputs = [each for each in tensors(arguments) if each.requires_grad]
    return torch.autograd.grad(outputs, inputs, allow_unused=True) if outputs and inputs else ()


@cache
def samples(name):
    """Return the positional and named arguments of the operator's samples, and its results, if the CPU has them."""
    operator, found = OPERATORS[name], []
    kinds = [each for each in (torch.float32, torch.int64) if each in operator.dtypes] or [*operator.dtypes]
    if not kinds:
        return found
    torch.manual_seed(0)
    differentiable = operator.supports_autograd and kinds[0] == torch.float32
    for sample in samples_of(operator, kinds[0], SAMPLES, requires_grad=differentiable):
        arguments = sample.input, *sample.args
        with suppress(Exception):  # samples that only a GPU accepts
            found.append((arguments, sample.kwargs, operator(*arguments, **sample.kwargs)))
    return found


WITHOUT_ASSUMPTION = {"sparse.sampled_addmm", "to_sparse"}  # nothing is assumed about their results


def on_device(arguments, keywords):
    return convert(arguments), {key: "cuda" if key == "device" else convert(each) for key, each in keywords.items()}


def layout(each):
    if each is None:
        return None
    return tuple(each.shape), each.dtype, each.stride() if each.layout is torch.strided else each.layout


def measure(operator, arguments, keywords):
    """Return the layouts of results, the shapes of gradients, and the peak; None if the operator needs values."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats()
    copies, named = on_device(arguments, keywords)
    try:
        made = tensors(operator(*copies, **named))
        found = gradients(made, (*copies, *named.values()))
    except DataDependent:
        return None
    return [*map(layout, made)], [each is not None and each.shape for each in found], torch.cuda.max_memory_allocated()


def measure_all(mode, names=OPERATORS):
    with forebay.emulate("cuda", profile="h100"), patch(mode):
        return {
            (name, at): measure(OPERATORS[name], arguments, keywords)
            for name in names
            for at, (arguments, keywords, _) in enumerate(samples(name))
        }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(300)
def test_memory_and_layouts_do_not_depend_on_the_mode():
    computed, shapes = measure_all("compute"), measure_all("strict")
    need_values = {name for (name, _), found in shapes.items() if found is None}
    assert len(need_values) < 20
    compared = [key for key in computed if key[0] not in need_values | OTHER_STRIDES]
    assert len(compared) > 1500
    assert {key: shapes[key] for key in compared} == {key: computed[key] for key in compared}
    # With assumed values, they return tensors of the same types, of other sizes.
    assumed = measure_all("shapes", sorted(need_values))
    unknown = {name for (name, _), found in assumed.items() if found is None}
    assert unknown == WITHOUT_ASSUMPTION
    for key, found in assumed.items():
        if found is not None:
            assert [each and each[1] for each in found[0]] == [each and each[1] for each in computed[key][0]], key


@pytest.fixture(scope="module")
def device():
    """An emulated device for all tests below."""
    with forebay.emulate("cuda", profile="h100"), patch():
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operator_is_that_of_the_cpu(device, name):
    if not samples(name):
        pytest.skip("no sample of the operator runs on the CPU")
    for arguments, keywords, expected in samples(name):
        copies, named = on_device(arguments, keywords)
        made = OPERATORS[name](*copies, **named)
        compare(tensors(made), tensors(expected), 1e-4)
        found = gradients(tensors(made), (*copies, *named.values()))
        compare(found, gradients(tensors(expected), (*arguments, *keywords.values())), 1e-3)
