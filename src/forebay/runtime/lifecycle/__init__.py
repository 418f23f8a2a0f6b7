"""Start and stop of emulation; exit and fork handlers."""
