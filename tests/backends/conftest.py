"""Race detection in all tests of the backends, whose queues execute late."""

from __future__ import annotations

import pytest

from forebay.observe.races import detected


@pytest.fixture(autouse=True)
def no_races():
    """Fail a test that accesses memory on two streams without an order between them."""
    with detected():
        yield
