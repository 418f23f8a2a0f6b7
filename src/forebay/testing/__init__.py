"""For tests: a fake backend, a model of the allocator, and the suite that every backend must pass.

`forebay.testing.conformance` holds the suite and `forebay.testing.plugin` its pytest fixtures.
"""
