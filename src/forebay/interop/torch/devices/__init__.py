"""PyTorch's CUDA devices as emulated ones: memory, C++ interfaces and Python names."""
