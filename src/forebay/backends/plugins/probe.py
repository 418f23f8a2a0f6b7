"""Temporary opening of a device for inspection; errors of a faulty backend are returned as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.backends.plugins.close_with_timeout import call_with_timeout
from forebay.backends.plugins.contract_checks import FAILURES, format_error
from forebay.errors import ForebayError
from forebay.spi import Driver, Port

__all__ = ["probe_device"]

_CLOSE_SECONDS = 5.0  # the queues have no work
_T = TypeVar("_T")


def probe_device(driver: Driver, index: int, inspect: Callable[[Port], _T]) -> tuple[_T | None, str]:
    """Open a device, call `inspect` with the port, and close it.

    Return the result, None if it failed, and a description of the error, "" if there was none.
    """
    try:
        port = driver.open(index)
    except FAILURES as error:
        return None, _describe(error)
    try:
        result, failure = inspect(port), ""
    except FAILURES as error:
        result, failure = None, _describe(error)
    finally:
        close_failure = _close(port)
    return result, failure or close_failure


def _close(port: Port) -> str:
    try:
        if call_with_timeout(_CLOSE_SECONDS, port.close)[0]:
            return ""
    except FAILURES as error:
        return _describe(error)
    return f"closing the device takes longer than {_CLOSE_SECONDS:g} s"


def _describe(error: Exception) -> str:
    """Return the error in one line, with the class of errors that a backend may not raise, and with its notes."""
    text = str(error) if isinstance(error, ForebayError) else format_error(error)
    return "; ".join([text, *getattr(error, "__notes__", ())])
