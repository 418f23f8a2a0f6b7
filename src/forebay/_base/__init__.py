"""Parts without a device, which every package may import."""
