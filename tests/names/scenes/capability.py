"""Compute capabilities: architectures of binaries and the devices that run them."""

from __future__ import annotations

from support.on_oracle import outcome


def architectures(cuda, torch_like):
    return [cuda.get_arch_list(), cuda.get_gencode_flags()]


def architecture_number(cuda, torch_like):
    texts = ("sm_90a", "compute_120f", "sm_75", "sm90", "sm_x", "a_1_2")
    return [outcome(cuda, cuda._extract_arch_version, text) for text in texts]


def binary_compatibility(cuda, torch_like):
    tables = cuda.DEVICE_REQUIREMENT, cuda.DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION
    return [
        {
            code: [str(requirement), [cc for cc in range(50, 130) if cc in requirement]]
            for code, requirement in table.items()
        }
        for table in tables
    ]


def build_architectures(cuda, torch_like):
    return {
        version: {machine: sorted(codes) for machine, codes in machines.items()}
        for version, machines in cuda.PYTORCH_RELEASES_CODE_CC.items()
    }


def interval_texts(cuda, torch_like):
    return [
        str(cuda._CompatInterval(start=80, exclude={87})),
        str(cuda._CompatInterval(86)),
        str(cuda._CompatSet({101})),
    ]


def supported_device_does_not_warn(cuda, torch_like):
    return [outcome(cuda, cuda._check_capability), outcome(cuda, cuda._check_cubins)]


def supported_types_of_an_h200(cuda, torch_like):
    return [
        cuda.is_bf16_supported(),
        cuda.is_bf16_supported(False),
        cuda.is_tf32_supported(),
        cuda.has_half,
        cuda.has_magma,
    ]


def first_lines_of_the_warning(cuda, torch_like):
    cuda.init()
    found = outcome(cuda, cuda._warn_unsupported_code, 0, 70, [75, 101])
    return [line.replace(" (emulated)", "") for line in found["warns"][0][1].splitlines()[:4]]


def limits_of_an_h200(cuda, torch_like):
    limits = cuda._device_limits.GPULimits(torch_like.device("cuda:0"))
    kinds = ("float16", "bfloat16", "float32", "float64", "int8", "int32")
    found = {}
    for kind in kinds:
        dtype = getattr(torch_like, kind)
        plain, tensor = limits.get_fma_per_cycle_per_sm_cuda_cores, limits.get_fma_per_cycle_per_sm_tensor_cores
        found[kind] = [outcome(cuda, call, dtype).get("value") for call in (plain, tensor)]
    return found
