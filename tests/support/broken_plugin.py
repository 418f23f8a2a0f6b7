"""A package's backend whose methods a test can break. conftest.py registers it."""

from __future__ import annotations

import types

from forebay.testing.fake import FakeDriver, FakePort, FakeQueue

KIND = "acme"


class Plugin:
    """A working backend with separate classes, whose methods a test can break."""

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
        self.broken = True
        self.driver, self.port, self.queue = Driver, Port, Queue

    def break_method(self, part: str, name: str, value: object = KeyError("nonsense")) -> None:
        """Replace a method while `broken`: raise `value`, return its result if it is a function, or return it."""
        original = getattr(getattr(self, part), name)

        def method(this, *arguments, **options):
            if not self.broken:
                return original(this, *arguments, **options)
            if isinstance(value, BaseException):
                raise value
            return value(this, *arguments) if isinstance(value, types.FunctionType) else value

        setattr(getattr(self, part), name, method)
