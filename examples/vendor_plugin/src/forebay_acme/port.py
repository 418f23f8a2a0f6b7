"""An open card: memory and queues."""

from __future__ import annotations

import errno
import threading
from collections.abc import MutableMapping

from forebay.errors import DeviceError, WrongState
from forebay.spi import DeviceProps
from forebay.vendor import integer_of, out_of_memory_error, size_of
from forebay_acme.card import Card, CardError
from forebay_acme.queue import AcmeQueue
from forebay_acme.recording import AcmeCapturedGraph

__all__ = ["AcmePort"]


class AcmePort:
    """An open card. Translates the library's errors into forebay's exceptions."""

    def __init__(self, props: DeviceProps, card: Card) -> None:
        self.props = props
        self.name = f"{props.kind}:{props.index}"
        self._card = card
        self._queues: list[AcmeQueue] = []
        self._closed = False
        self._lock = threading.RLock()

    def reserve(self, nbytes: int) -> int:
        return self._allocate(size_of(nbytes), "reserve")

    def release(self, address: int) -> None:
        self._free(address, "release")

    def memory_info(self) -> tuple[int, int]:
        self._check_open()
        return self._card.capacity - self._card.used, self._card.capacity

    def queue(self, priority: int = 0) -> AcmeQueue:
        integer_of(priority, "priority")  # ignored: this card has no priorities
        with self._lock:
            self._check_open()
            self._queues.append(AcmeQueue(self, len(self._queues)))
            return self._queues[-1]

    def new_graph(self, first: AcmeQueue, mode: str, queues: MutableMapping[int, int]) -> AcmeCapturedGraph:
        return AcmeCapturedGraph(first, mode, queues)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        closed = [queue.close() for queue in self._queues]
        if all(closed):  # else an engine may still access the memory
            self._card.free_all()

    # Ability PinnedHost: host memory that the card accesses directly

    def pin(self, nbytes: int) -> int:
        return self._allocate(size_of(nbytes), "pin", on_host=True)

    def unpin(self, address: int) -> None:
        self._free(address, "unpin", on_host=True)

    def _allocate(self, nbytes: int, call: str, *, on_host: bool = False) -> int:
        self._check_open()
        try:
            return self._card.allocate(nbytes, on_host=on_host)
        except (CardError, OSError) as error:
            free, capacity = self.memory_info()
            raise out_of_memory_error(
                self.name,
                nbytes,
                free=free,
                capacity=capacity,
                reserved=self._card.used,
                code=getattr(error, "code", errno.ENOMEM),
                call=call,
            ) from error

    def _free(self, address: int, call: str, *, on_host: bool = False) -> None:
        self._check_open()
        try:
            self._card.free(integer_of(address, "address"), on_host=on_host)
        except CardError as error:
            message = f"{self.name}: {error}"
            raise DeviceError(message, code=error.code, call=call, device=self.name) from error

    def _check_open(self) -> None:
        if self._closed:
            raise WrongState(f"{self.name} was closed")
