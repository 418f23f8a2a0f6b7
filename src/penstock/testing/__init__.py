"""For tests: a fake backend, a model of the allocator, and the suite that every backend must pass.

`penstock.testing.conformance` holds the suite and `penstock.testing.plugin` its pytest fixtures.
"""
