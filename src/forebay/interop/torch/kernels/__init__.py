"""Kernels of PyTorch's operators for emulated CUDA devices."""
