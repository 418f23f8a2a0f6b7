"""Everything that needs a GPU, in one command: `python3 dev.py gpu` (see `gpu.__main__`)."""
