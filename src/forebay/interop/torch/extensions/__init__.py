"""Native libraries of packages that extend PyTorch, for emulated devices."""
