"""A program over a package, and the list of all programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

__all__ = ["PROGRAMS", "Program", "add", "program", "train"]


class Program(NamedTuple):
    """A program.

    Parameters
    ----------
    name : str
        Its name: the package and what the program does.
    run : callable
        Runs it on the device of the argument, "cpu" or "cuda", and returns the last loss.
    reads_values : str, optional
        Why it reads values that are not computed; "" if it reads none.
    on_gpu_only : bool, optional
        Whether nothing is compared with the CPU: the package chooses the device, or draws random numbers on it.
    needs : tuple of str, optional
        Packages without which the program is not run.
    """

    name: str
    run: Callable[[str], torch.Tensor]
    reads_values: str = ""
    on_gpu_only: bool = False
    needs: tuple[str, ...] = ()


PROGRAMS: dict[str, Program] = {}


def add(name: str, run: Callable[[str], torch.Tensor], **options: Any) -> None:
    """Add a program to the list. Raises ValueError if there is one of that name."""
    if name in PROGRAMS:
        raise ValueError(f"there are two programs {name!r}")
    PROGRAMS[name] = Program(name, run, **options)


def program(name: str, **options: Any) -> Callable[[Callable[[str], torch.Tensor]], Callable[[str], torch.Tensor]]:
    """Return a decorator that adds a program to the list."""

    def decorate(run: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
        add(name, run, **options)
        return run

    return decorate


def train(
    model: nn.Module,
    inputs: Iterable[Any],
    place: str,
    loss: Callable[[Any], torch.Tensor] | None = None,
    steps: int = 2,
) -> torch.Tensor:
    """Train a model for some steps of AdamW, without dropout, and return the last loss.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on the CPU.
    inputs : iterable
        The arguments of the model, on the CPU.
    place : str
        The device.
    loss : callable, optional
        Return the loss of the model's result, by default the mean of its squares.
    steps : int, optional
        Number of steps.
    """
    model = model.to(place).eval()
    given = [each.to(place) if isinstance(each, torch.Tensor) else each for each in inputs]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        result = model(*given)
        last = mean_of_squares(result) if loss is None else loss(result)
        last.backward()
        optimizer.step()
    return last.detach()


def mean_of_squares(result: torch.Tensor) -> torch.Tensor:
    """Return the mean of squares."""
    return result.float().square().mean()
