"""Backend for NVIDIA GPUs, through the CUDA driver and cuda-bindings.

The package is not called `cuda`, as `forebay.backends.cuda` has the names of `torch.backends.cuda`.
"""
