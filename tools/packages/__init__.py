"""Programs over packages of PyPI, which train small models on the CPU and on emulated devices."""
