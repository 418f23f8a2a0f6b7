"""Test support: emulated devices in pytest, a fake backend, and the suite that every backend must pass.

`forebay.testing.plugin` holds the pytest fixtures, `forebay.testing.conformance` the suite and `forebay.testing.fake`
the fake backend.
"""
