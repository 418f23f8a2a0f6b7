"""`torch.distributed` of a PyTorch build without it: programs ask whether processes form a group."""

from __future__ import annotations

import os
from typing import NoReturn

__all__ = ["get_rank", "get_world_size", "is_available", "is_initialized", "is_torchelastic_launched"]


def is_available() -> bool:
    """Return False: there are no process groups. `forebay.cuda.nccl` has collectives between devices."""
    return False


def is_initialized() -> bool:
    """Return False: there are no process groups."""
    return False


def is_torchelastic_launched() -> bool:
    """Return True if `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_rank(group: object = None) -> NoReturn:  # noqa: ARG001 -- PyTorch's signature
    """Raise ValueError: there is no process group.

    Parameters
    ----------
    group : object, optional
        Ignored.

    Raises
    ------
    ValueError
        Always.
    """
    raise ValueError(_NO_GROUP)


def get_world_size(group: object = None) -> NoReturn:  # noqa: ARG001 -- PyTorch's signature
    """Raise ValueError: there is no process group.

    Parameters
    ----------
    group : object, optional
        Ignored.

    Raises
    ------
    ValueError
        Always.
    """
    raise ValueError(_NO_GROUP)


_NO_GROUP = "Default process group has not been initialized, please make sure to call init_process_group."
