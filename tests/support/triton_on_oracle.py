"""Triton and Inductor over the oracle, whose stand-in runtime runs no code: kernels are compiled, and not launched.

Nothing is measured, as on emulated devices: Inductor takes its first choices.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile


class _Utilities:
    def load_binary(self, name, kernel, shared, device):
        return None, 1, 0, 0, 1024

    def get_device_properties(self, device):
        import torch

        found = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": 232_448,
            "max_num_regs": 65_536,
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": 32,
        }


class _Launcher:
    def __init__(self, source, metadata):
        pass

    def __call__(self, *arguments):
        pass


@functools.cache
def install():
    """Let Triton compile for the oracle's card, the H200, up to the code of LLVM."""
    folder = tempfile.mkdtemp()
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}

    import torch
    import triton.backends
    from torch._inductor import config
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime import benchmarking, triton_heuristics
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import GPUDriver
    from triton.runtime.driver import driver

    class Driver(GPUDriver):
        def __init__(self):
            super().__init__()
            self.utils, self.launcher_cls = _Utilities(), _Launcher

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_active_torch_device(self):
            return torch.device("cuda", 0)

        def get_device_interface(self):
            return torch.cuda

        @staticmethod
        def is_active():
            return True

        def map_python_to_cpp_type(self, ty):
            raise NotImplementedError

        def get_benchmarker(self):
            raise NotImplementedError

    before = triton.backends.backends["nvidia"]

    class Compiler(before.compiler):
        def add_stages(self, stages, options, language):
            super().add_stages(stages, options, language)
            del stages["ptx"]
            stages["cubin"] = _no_code

    triton.backends.backends["nvidia"] = type(before)(Compiler, Driver)
    driver._default = made = Driver()
    driver.set_active(made)
    config.compile_threads = 1
    config.fx_graph_cache = config.use_static_cuda_launcher = False
    torch._functorch.config.enable_autograd_cache = False
    triton_heuristics.CachingAutotuner.bench = lambda *_, **__: 1.0
    for each in (benchmarking.TritonBenchmarker, benchmarking.InductorBenchmarker):
        each.benchmark_gpu = lambda *_, **__: 1.0
    pad_mm.should_pad_bench = lambda *_, **__: False


def _no_code(source, metadata):
    metadata["name"] = re.search(r"define .*@([\w$.]+)\(", str(source))[1]
    return b""
