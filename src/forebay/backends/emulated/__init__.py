"""Emulated devices: devices of other kinds, built from host queues and host memory."""
