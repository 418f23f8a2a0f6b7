"""A fake backend for tests: no memory, no threads, a virtual clock that the test advances, scripted failures."""

from forebay.testing.fake.backend import FakeDriver, FakePort
from forebay.testing.fake.clock import FakeClock, FakeMark
from forebay.testing.fake.faults import Fault, Faults
from forebay.testing.fake.queue import FakeQueue

__all__ = ["FakeClock", "FakeDriver", "FakeMark", "FakePort", "FakeQueue", "Fault", "Faults"]
