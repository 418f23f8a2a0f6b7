"""Executor of the commands that take `--scheduler`: the workers of a Dask scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from forebay.commands import CommandError

_CONNECT_SECONDS = 10


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Context manager for an executor on the workers of a Dask scheduler. Raises CommandError if it has none."""
    try:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port
    except ImportError as error:
        raise CommandError("--scheduler needs the package distributed: pip install 'forebay[tune]'") from error
    try:
        get_address_host_port(address)  # a client that cannot parse it waits 20 s when the interpreter exits
        client: Any = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]  # has no annotations
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"cannot connect to the scheduler {address!r}: {error}") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise CommandError(f"the scheduler {address!r} has no workers: start one with `dask worker {address}`")
        with client.get_executor() as executor:
            yield executor
