"""Kernels of Metal devices: compilation, a cache of pipelines, forebay's own kernels, and shaders of programs."""
