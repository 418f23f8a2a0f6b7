"""Golden traces: files, replay and the command that repeats them."""
