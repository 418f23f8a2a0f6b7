"""The search for the largest value of an argument with which a program fits a card.

# Note [Search of the largest value]
A program that fits with a value is taken to fit with all smaller ones, which no finite number of runs can show. The
answer is a value that fits, as a run on the card has shown, below one that does not, so that it equals what brute force
finds. Which value runs next is computed from lines through the runs so far, which only save runs. The reserved bytes
bend near the card's limit, as the allocator releases cached segments before it fails, so that a card holds more than
their line says; the bytes in blocks do not bend. One thing is concluded without a run: that a value does not fit, if a
line through the bytes in blocks, which a third run has confirmed, exceeds the card's memory there by more than twice
its error. A model of the bytes that is fitted but not confirmed was rejected: a program that changes its algorithm with
the size has none.
Test: tests/interop/torch/fit/test_search.py::test_answer_is_that_of_brute_force
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LargestValue", "Probe"]

_FIRST_STEP = 8  # the second value is so many times the first
_LINE = 3  # probes that confirm a line


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a run.

    Parameters
    ----------
    value : int
        The value of the argument.
    fits : bool
        Whether the program fits.
    allocated, reserved : int
        The least bytes of the card that blocks need, with what is outside the allocator, and the most that are in use.
    """

    value: int
    fits: bool
    allocated: int
    reserved: int


@dataclass(slots=True)
class LargestValue:
    """The search on one card: values to run, until the answer is known.

    Parameters
    ----------
    least, most : int
        The range of values, both included.
    capacity : int
        The bytes of the card.
    slope : float
        The bytes that one more takes on another card, for the value after the first; 0 if that is not known.
    probes : list of Probe
        The runs so far.
    """

    least: int
    most: int
    capacity: int
    slope: float = 0.0
    probes: list[Probe] = field(default_factory=list)
    _step: int = 1  # of a value above one that fits, where a line expects no more

    @property
    def largest(self) -> int | None:
        """The largest value that fits as far as is known; None if none does."""
        return max((each.value for each in self.probes if each.fits), default=None)

    @property
    def failing(self) -> Probe | None:
        """The run with the smallest value that does not fit; None if there was none."""
        return min((each for each in self.probes if not each.fits), key=lambda each: each.value, default=None)

    def add(self, probe: Probe) -> None:
        """Take the result of a run."""
        if probe.fits and self.largest is not None and len(self.fitting()) > 1:
            self._step *= 2
        self.probes.append(probe)

    def following(self) -> int | None:
        """Return the value to run next; None if the answer is known."""
        low = self.largest
        if low is None:
            return None if self.probes else self.least
        high = self._above(low)
        if high - low <= 1:
            return None
        return min(max(self._guess(low, high), low + 1), high - 1)

    @property
    def measured_slope(self) -> float:
        """The bytes that one more takes, by the two largest values that fit; 0 if there are not two."""
        found = self.fitting()[-2:]
        return (found[1].reserved - found[0].reserved) / (found[1].value - found[0].value) if len(found) > 1 else 0.0

    def fitting(self) -> list[Probe]:
        """Return the runs that fit, by value."""
        return sorted((each for each in self.probes if each.fits), key=lambda each: each.value)

    def _above(self, low: int) -> int:
        """Return the smallest value above `low` that is known not to fit."""
        ends = [self.most + 1, *(each.value for each in self.probes if not each.fits)]
        if (bound := self._excluded()) is not None:
            ends.append(max(bound, low + 1))
        return min(ends)

    def _excluded(self) -> int | None:
        """Return the smallest value that a confirmed line of the bytes in blocks excludes."""
        found = self.fitting()
        if len(found) < _LINE:
            return None
        first, second, third = found[0], found[-2], found[-1]
        slope = (second.allocated - first.allocated) / (second.value - first.value)
        expected = second.allocated + slope * (third.value - second.value)
        error = abs(expected - third.allocated)
        slope = (third.allocated - first.allocated) / (third.value - first.value)
        if slope <= 0 or error > slope / 4:  # it does not tell one value from the next
            return None
        return third.value + int((self.capacity + 2 * error - third.allocated) / slope) + 1

    def _guess(self, low: int, high: int) -> int:
        """Return a value at which the card may be full."""
        last, slope = self.fitting()[-1], self.measured_slope or self.slope
        if slope == 0 and len(self.probes) == 1:
            return max(low, 1) * _FIRST_STEP
        if slope <= 0:  # the value does not decide
            return high - 1 if high > self.most else (low + high) // 2
        full = low + int((self.capacity - last.reserved) / slope)
        if full >= high:  # which is known not to fit, or the end of the range
            return high - 1 if high > self.most else (low + high) // 2
        return max(full, low + self._step)
