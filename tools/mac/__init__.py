"""Everything that needs Apple's GPU; `python3 dev.py mac`."""
