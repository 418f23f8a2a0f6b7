"""Backend for NVIDIA GPUs, through the CUDA driver and cuda-bindings."""
