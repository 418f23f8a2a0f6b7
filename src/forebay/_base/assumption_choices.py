"""Choices among assumed values, which a user or a check of the answer makes.

# Note [Opposite choices]
Whether a peak depends on assumed values is found by runs with the opposite ones. They are chosen where a value is read
or decides a size, not where it is computed, so that a run can take the opposite of one line only. Opposite are: of a
condition, the other value, also of `torch.equal` and of the condition of a `while`, whose loop then ends at once; of a
number that falls with each read, a large one that rises; of shares, such as those of `softmax`, their complement; of
the smallest integer of a range, the largest, and of a bound the smallest; of a mask, no elements where all were true,
and all otherwise; of the number of different values, one; of balanced routing, the worst. Two runs cannot prove that no
values change the peak: the answer says that these two did, or did not. Rejected: random values, of which a few runs say
less, and differ.
Test: tests/interop/torch/assumptions/test_opposites.py::test_reads_return_the_opposite
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["AssumptionChoices"]

_ROUTINGS = ("balanced", "worst")


@dataclass(frozen=True, slots=True)
class AssumptionChoices:
    """Choices among assumed values.

    Parameters
    ----------
    mask : float, default 1.0
        The share of their upper bound that counts of masks, of nonzero elements and of different values have, above 0
        and at most 1.
    routing : {"balanced", "worst"}, default "balanced"
        How tokens are distributed to experts: evenly, or all to the first one.
    opposite : bool, default False
        Take the opposite values.
    lines : tuple of str, optional
        The lines that get opposite values; all if there are none.
    """

    mask: float = 1.0
    routing: Literal["balanced", "worst"] = "balanced"
    opposite: bool = False
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.mask <= 1:
            raise ValueError(f"the share of masks must be above 0 and at most 1, not {self.mask}")
        if self.routing not in _ROUTINGS:
            raise ValueError(f"the routing must be 'balanced' or 'worst', not {self.routing!r}")

    def is_opposite_at(self, line: str) -> bool:
        """Return True if a line gets opposite values."""
        return self.opposite and (not self.lines or line in self.lines)

    def as_json(self) -> dict[str, Any]:
        """Return what the user has chosen."""
        return {"mask": self.mask, "routing": self.routing}

    def as_options(self) -> dict[str, Any]:
        """Return all fields as values that `json.dumps` accepts."""
        return {**self.as_json(), "opposite": self.opposite, "lines": [*self.lines]}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> AssumptionChoices:
        """Return the choices from what `as_options` has returned."""
        return cls(**{**options, "lines": tuple(options.get("lines", ()))})

    def in_words(self) -> str:
        """Return the choices that are not the defaults; "" if all are."""
        parts = [f"{self.mask:.4g} of the elements of masks"] if self.mask != 1 else []
        parts += [f"{self.routing} routing"] if self.routing != "balanced" else []
        return ", ".join(parts)
