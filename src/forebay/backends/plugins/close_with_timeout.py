"""Closing what a package's backend has opened: with a timeout, and after another failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from forebay.spi import Port

__all__ = ["call_with_timeout", "close_on_error"]

_T = TypeVar("_T")


@contextmanager
def close_on_error(port: Port) -> Iterator[Port]:
    """Close the port if the block raises; an exception of `close` is suppressed in favour of the block's."""
    try:
        yield port
    except BaseException:
        with suppress(Exception):
            port.close()
        raise


def call_with_timeout(seconds: float, function: Callable[[], _T]) -> tuple[bool, _T | None]:
    """Return `(finished, result)`. On timeout the call keeps running in its helper thread."""
    outcomes: list[tuple[_T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcomes.append((function(), None))
        except BaseException as error:  # noqa: BLE001 -- raised again below
            outcomes.append((None, error))

    thread = threading.Thread(target=run, name="forebay closing", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcomes:
        return False, None
    result, error = outcomes[0]
    if error is not None:
        raise error
    return True, result
