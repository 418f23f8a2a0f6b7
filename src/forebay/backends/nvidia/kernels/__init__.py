"""Kernels of CUDA devices: compilation by NVRTC, a cache on disk, modules, launches, and forebay's own kernels."""
