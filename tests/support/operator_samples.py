"""Arguments of operators from PyTorch's OpInfo database, made in a fifth of the time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.testing._internal import common_utils

__all__ = ["samples_of"]


def samples_of(operator: Any, dtype: torch.dtype, count: int, **options: Any) -> Iterator[Any]:
    """Yield the first samples of an operator, on the CPU.

    Before each one, the database looks for the name of a test in the source of all frames, and sets the seeds of all
    kinds of devices, of which those without a device keep a formatted stack each time. No test
    has such a name here, and the arguments are on the CPU.
    """
    with patch.object(common_utils, "extract_test_fn", _no_test), patch.object(common_utils, "set_rng_seed", _seed):
        yield from islice(operator.sample_inputs("cpu", dtype, **options), count)


def _no_test() -> None:
    return None


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- that the database draws from
