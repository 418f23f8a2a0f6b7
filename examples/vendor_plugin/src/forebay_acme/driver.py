"""Driver of Acme's cards."""

from __future__ import annotations

from forebay.errors import DeviceError
from forebay.spi import DeviceProps
from forebay.vendor import integer_of
from forebay_acme.card import Card, CardError, card_count
from forebay_acme.port import AcmePort

__all__ = ["AcmeDriver"]


class AcmeDriver:
    """The class that the entry point names. Its constructor opens no device."""

    kind = "mtia"

    def count(self) -> int:
        try:
            return card_count()
        except CardError:
            return 0  # `why_not` returns the reason

    def why_not(self) -> str:
        try:
            return "" if card_count() else "no Acme card was found: is one in the machine?"
        except CardError as error:
            return str(error)

    def open(self, index: int) -> AcmePort:
        props = self.describe(index)
        return AcmePort(props, Card(props.total_bytes))

    # Ability Describes

    def describe(self, index: int) -> DeviceProps:
        if integer_of(index, "index") not in range(self.count()):
            name, reason = f"{self.kind}:{index}", self.why_not() or f"there are {self.count()} cards"
            raise DeviceError(f"no {name}: {reason}", call="describe", device=name)
        return DeviceProps(
            kind=self.kind,
            index=index,
            name="Acme M1",
            total_bytes=1 << 30,
            queue_visible=True,  # host functions on a queue may access the card's memory
            details={"major": 1, "minor": 0},  # PyTorch's names
        )
