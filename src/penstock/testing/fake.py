"""A backend with no memory and no threads, whose clock the test cranks: the smallest one that keeps the contract.

Queued work is done only when the test says so: `port.clock.advance(ns)` does all that this time allows, and
`queue.finish()`, `queue.finish(tick)`, `port.finish_all()` or a wait do what they need and nothing else. Work that
waits for another queue makes that queue's work be done first; as a tick can be waited for only once it is signalled,
this always ends. Every call is in `port.calls`, and any of them can be made to fail.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.backends.arguments import address_of, byte_of, index_of, integer_of, size_of
from penstock.errors import DeviceError, Forked, OutOfMemory, PenstockError, PenstockWarning, WrongState
from penstock.sizes import format_bytes
from penstock.spi import DeviceProps, Mark, Queue
