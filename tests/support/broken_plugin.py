"""A package's backend that tests spoil, method by method. conftest.py lets tests import it, and installs it."""

from __future__ import annotations

import types

from forebay.testing.fake import FakeDriver, FakePort, FakeQueue

KIND = "acme"


class Plugin:
    """A good one, whose classes a test spoils."""

    def __init__(self) -> None:
        plugin = self

        class Queue(FakeQueue):
            pass

        class Port(FakePort):
            def queue(self, priority=0):
                made = super().queue(priority)
                made.__class__ = Queue
                return made

        class Driver(FakeDriver):
            def __init__(self):
                super().__init__(2, kind=KIND)

            def open(self, index):
                port = super().open(index)
                port.__class__ = Port
                plugin.ports.append(port)
                return port

        self.ports: list[FakePort] = []
        self.spoilt = True
        self.driver, self.port, self.queue = Driver, Port, Queue

    def spoil(self, part: str, name: str, value: object = KeyError("nonsense")) -> None:
        """While `spoilt`, that method raises an exception, or gives what a function gives, or what else it is."""
        well = getattr(getattr(self, part), name)

        def method(this, *arguments, **options):
            if not self.spoilt:
                return well(this, *arguments, **options)
            if isinstance(value, BaseException):
                raise value
            return value(this, *arguments) if isinstance(value, types.FunctionType) else value

        setattr(getattr(self, part), name, method)
