"""Closing what a package's backend has opened: in a time, and when something else has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from forebay.spi import Port

__all__ = ["closed_if_it_fails", "within"]

_T = TypeVar("_T")


@contextmanager
def closed_if_it_fails(port: Port) -> Iterator[Port]:
    """The port is closed when what is done inside fails; that is what is told."""
    try:
        yield port
    except BaseException:
        with suppress(Exception):
            port.close()
        raise


def within(seconds: float, function: Callable[[], _T]) -> tuple[bool, _T | None]:
    """Whether it came back in time, and what it gave; where not, a thread of its own stays with it."""
    found: list[tuple[_T | None, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((function(), None))
        except BaseException as error:  # noqa: BLE001 -- raised again below
            found.append((None, error))

    thread = threading.Thread(target=run, name="forebay closing", daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        return False, None
    gave, error = found[0]
    if error is not None:
        raise error
    return True, gave
