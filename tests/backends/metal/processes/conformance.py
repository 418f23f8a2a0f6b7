"""The conformance suite with the Metal backend, in a process that finds the stand-in of tests/softmetal."""

import pytest
from softmetal.control import control

from forebay.testing.conformance import *  # noqa: F403 - the list is the suite

pytest_plugins = ["forebay.testing.plugin"]


@pytest.fixture(autouse=True)
def _rules():
    """No test breaks a rule of Metal."""
    yield
    control.check()
