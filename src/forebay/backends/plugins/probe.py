"""A device that is opened to be looked at, and closed again, whatever its backend does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.backends.plugins.close_with_timeout import within
from forebay.backends.plugins.contract_checks import FAILURES, spelled
from forebay.errors import ForebayError
from forebay.spi import Driver, Port

__all__ = ["look"]

_SECONDS = 5.0  # for closing it: there is nothing to wait for
_T = TypeVar("_T")


def look(driver: Driver, index: int, see: Callable[[Port], _T]) -> tuple[_T | None, str]:
    """What `see` gives of the open port, None where that failed; and what is wrong with the device, mostly nothing."""
    try:
        port = driver.open(index)
    except FAILURES as error:
        return None, _told(error)
    try:
        found, wrong = see(port), ""
    except FAILURES as error:
        found, wrong = None, _told(error)
    finally:
        not_closed = _close(port)
    return found, wrong or not_closed


def _close(port: Port) -> str:
    try:
        return "" if within(_SECONDS, port.close)[0] else f"closing it takes longer than {_SECONDS:g} s"
    except FAILURES as error:
        return _told(error)


def _told(error: Exception) -> str:
    """In one line; of what a backend should not have raised also the class, and where it was."""
    said = str(error) if isinstance(error, ForebayError) else spelled(error)
    return "; ".join([said, *getattr(error, "__notes__", ())])
