"""`torch.compile` on emulated devices: hooks that are not traced, and Inductor for emulated cards."""
