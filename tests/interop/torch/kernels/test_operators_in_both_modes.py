"""PyTorch's own samples of all operators: shapes, dtypes, strides and memory are the same with values and without."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
pytest.importorskip("expecttest", reason="PyTorch's testing package needs expecttest")

from interop.torch.kernels.test_operator_database import (  # noqa: E402 -- as above
    OPERATORS,
    SAMPLES,
    convert,
    gradients,
    tensors,
)

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above

# PyTorch's meta kernel has other strides than its kernel for the CPU.
OTHER_STRIDES = {"fft.rfftn", "nonzero_static", "pca_lowrank", "svd_lowrank"}


def layout(each):
    if each is None:
        return None
    return tuple(each.shape), each.dtype, each.stride() if each.layout is torch.strided else each.layout


def measure(operator, arguments, keywords):
    """Return the layouts of results, the shapes of gradients, and the peak; None if the operator needs values."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats()
    copies = convert(arguments)
    named = {key: "cuda" if key == "device" else convert(each) for key, each in keywords.items()}
    try:
        made = tensors(operator(*copies, **named))
        found = gradients(made, (*copies, *named.values()))
    except DataDependent:
        return None
    return [*map(layout, made)], [each is not None and each.shape for each in found], torch.cuda.max_memory_allocated()


def measure_all(mode):
    found = {}
    with forebay.emulate("cuda", profile="h100"), patch(mode):
        for name, operator in OPERATORS.items():
            kinds = [each for each in (torch.float32, torch.int64) if each in operator.dtypes] or [*operator.dtypes]
            if not kinds:
                continue
            differentiable = operator.supports_autograd and kinds[0] == torch.float32
            torch.manual_seed(0)
            samples = operator.sample_inputs("cpu", kinds[0], requires_grad=differentiable)
            for at, sample in zip(range(SAMPLES), samples, strict=False):
                arguments = sample.input, *sample.args
                try:
                    operator(*arguments, **sample.kwargs)
                except Exception:  # noqa: BLE001 -- samples that only a GPU accepts
                    continue
                found[name, at] = measure(operator, arguments, sample.kwargs)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(300)
def test_memory_and_layouts_do_not_depend_on_the_mode():
    computed, shapes = measure_all("compute"), measure_all("shapes")
    need_values = {name for (name, _), found in shapes.items() if found is None}
    assert len(need_values) < 60
    compared = [key for key in computed if key[0] not in need_values | OTHER_STRIDES]
    assert len(compared) > 1500
    assert {key: shapes[key] for key in compared} == {key: computed[key] for key in compared}
