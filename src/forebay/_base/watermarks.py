"""High and low watermark of PyTorch's allocator for Metal, as fractions of a device's recommended memory.

The high watermark limits the memory of heaps. Above the low watermark there is memory pressure: large buffers get
dedicated heaps, and cached buffers are released by age.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from forebay._base import config
from forebay.errors import ForebayError
from forebay.spi import Heaps

__all__ = ["MAX_RATIO", "Watermarks"]

MAX_RATIO = 2.0
_DEFAULT_HIGH = 1.7
_DEFAULT_LOW, _DEFAULT_LOW_DISCRETE = 1.4, 1.0
_KEYS = ("high_watermark_ratio", "low_watermark_ratio")


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Both watermarks as fractions of `recommended` bytes; 0 means none."""

    recommended: int
    high: float = _DEFAULT_HIGH
    low: float = _DEFAULT_LOW

    @classmethod
    def from_environment(cls, heaps: Heaps) -> Watermarks:
        """Read PYTORCH_MPS_HIGH_WATERMARK_RATIO and PYTORCH_MPS_LOW_WATERMARK_RATIO, with PyTorch's defaults.

        ForebayError, with PyTorch's text, for a high ratio above 2 and for a low ratio above the high one, so that a
        small high ratio requires setting the low one too. ValueError if a value is not a number.
        """
        high = _checked(config.HIGH_WATERMARK.value(), _DEFAULT_HIGH, MAX_RATIO, "high")
        try:
            low = _checked(config.LOW_WATERMARK.value(), _default_low(heaps), high or MAX_RATIO, "low")
        except ForebayError as error:
            names = config.LOW_WATERMARK.name, config.HIGH_WATERMARK.name
            raise ForebayError(
                f"{error}\n{names[0]} may be 0 to {high or MAX_RATIO:g}, the value of {names[1]}: set both"
            ) from None
        return cls(heaps.recommended, high, low)

    @classmethod
    def from_text(cls, heaps: Heaps, text: str) -> Watermarks:
        """Parse the output of `str`: "high_watermark_ratio:0.0,low_watermark_ratio:1.0", with either key optional.

        ValueError for an invalid text, ForebayError for a ratio outside [0, 2].
        """
        ratios: dict[str, float | None] = dict.fromkeys(_KEYS)
        for part in filter(None, text.split(",")):
            key, _, value = part.partition(":")
            if key.strip() not in ratios:
                raise ValueError(f"{part.strip()!r} is not a setting of heaps; the settings are {' and '.join(_KEYS)}")
            ratios[key.strip()] = float(value)
        high, low = ratios.values()
        low = _checked(low, _default_low(heaps), MAX_RATIO, "low")
        return cls(heaps.recommended, _checked(high, _DEFAULT_HIGH, MAX_RATIO, "high"), low)

    def __str__(self) -> str:
        return f"{_KEYS[0]}:{self.high},{_KEYS[1]}:{self.low}"

    def with_high(self, high: float) -> Watermarks:
        """Replace the high watermark, 0 to 2.

        The low one is kept even if it is then above: PyTorch, too, compares the two only when it reads the environment.
        """
        return Watermarks(self.recommended, _checked(high, high, MAX_RATIO, "high"), self.low)

    @property
    def high_limit(self) -> int | None:
        """The most bytes that may be reserved in total; None without a limit."""
        return int(self.high * self.recommended) if self.high else None

    @property
    def low_limit(self) -> int | None:
        """Bytes from which on there is memory pressure; None for never."""
        return int(self.low * self.recommended) if self.low else None


def _default_low(heaps: Heaps) -> float:
    return _DEFAULT_LOW if heaps.unified else _DEFAULT_LOW_DISCRETE


def _checked(value: float | None, default: float, highest: float, which: str) -> float:
    ratio = default if value is None else value
    if isinstance(ratio, bool) or not isinstance(ratio, Real):
        raise TypeError(f"a {which} watermark is a number, a fraction of the recommended memory, not {ratio!r}")
    if not 0 <= ratio <= highest:  # also rejects NaN
        raise ForebayError(f"invalid {which} watermark ratio {ratio:g}")
    return ratio
