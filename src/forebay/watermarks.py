"""How much of a device's recommended memory heaps may take: the two watermarks of PyTorch's allocator for Metal.

Above the high one nothing more is taken. From the low one on memory is short: heaps are only as large as they must be,
and cached buffers are given back by their age.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from forebay import config
from forebay.errors import ForebayError
from forebay.spi import Heaps

__all__ = ["HIGHEST", "Watermarks"]

HIGHEST = 2.0
_HIGH = 1.7
_LOW, _LOW_DISCRETE = 1.4, 1.0
_KEYS = ("high_watermark_ratio", "low_watermark_ratio")


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Both as shares of `recommended` bytes, 0 for none."""

    recommended: int
    high: float = _HIGH
    low: float = _LOW

    @classmethod
    def of_environment(cls, heaps: Heaps) -> Watermarks:
        """What PYTORCH_MPS_HIGH_WATERMARK_RATIO and PYTORCH_MPS_LOW_WATERMARK_RATIO say, or PyTorch's own.

        ForebayError, with PyTorch's words, for a high one above 2, or a low one above the high one: so who sets one
        must often set both. ValueError for what is no number.
        """
        high = _checked(config.HIGH_WATERMARK.value(), _HIGH, HIGHEST, "high")
        try:
            low = _checked(config.LOW_WATERMARK.value(), _usual_low(heaps), high or HIGHEST, "low")
        except ForebayError as error:
            names = config.LOW_WATERMARK.name, config.HIGH_WATERMARK.name
            raise ForebayError(
                f"{error}\n{names[0]} may be 0 to {high or HIGHEST:g}, which {names[1]} is: set both"
            ) from None
        return cls(heaps.recommended, high, low)

    @classmethod
    def of_text(cls, heaps: Heaps, text: str) -> Watermarks:
        """As `str` of one says it: "high_watermark_ratio:0.0,low_watermark_ratio:1.0", or one of them, or neither.

        ValueError for another text, ForebayError for a share that is not 0 to 2.
        """
        said: dict[str, float | None] = dict.fromkeys(_KEYS)
        for part in filter(None, text.split(",")):
            key, _, value = part.partition(":")
            if key.strip() not in said:
                raise ValueError(f"{part.strip()!r} is not a setting of heaps: there are {' and '.join(_KEYS)}")
            said[key.strip()] = float(value)
        high, low = said.values()
        low = _checked(low, _usual_low(heaps), HIGHEST, "low")
        return cls(heaps.recommended, _checked(high, _HIGH, HIGHEST, "high"), low)

    def __str__(self) -> str:
        return f"{_KEYS[0]}:{self.high},{_KEYS[1]}:{self.low}"

    def with_high(self, high: float) -> Watermarks:
        """Another high one, 0 to 2. The low one stays, be it above: PyTorch compares only the environment's, too."""
        return Watermarks(self.recommended, _checked(high, high, HIGHEST, "high"), self.low)

    @property
    def most(self) -> int | None:
        """Bytes that may be taken in all; None for any number."""
        return int(self.high * self.recommended) if self.high else None

    @property
    def short_from(self) -> int | None:
        """Bytes from which on memory is short; None for never."""
        return int(self.low * self.recommended) if self.low else None


def _usual_low(heaps: Heaps) -> float:
    return _LOW if heaps.unified else _LOW_DISCRETE


def _checked(said: float | None, usual: float, most: float, which: str) -> float:
    ratio = usual if said is None else said
    if isinstance(ratio, bool) or not isinstance(ratio, Real):
        raise TypeError(f"a {which} watermark is a number, a share of the recommended memory, not {ratio!r}")
    if not 0 <= ratio <= most:  # nor for what is no number
        raise ForebayError(f"invalid {which} watermark ratio {ratio:g}")
    return ratio
