"""Green contexts: partitions of a GPU's multiprocessors, which only a GPU supports (`torch.cuda.green_contexts`)."""

from __future__ import annotations

from typing import Final

from forebay.names.unsupported import unsupported_class

__all__ = ["GreenContext", "SMPartition", "get_num_locality_domains", "is_localization_supported"]

_SPLIT = (
    "*, num_sms=0, coscheduled_sm_count=0, preferred_coscheduled_sm_count=0, backfill=False, locality_domain_ids=None"
)
_QUEUES = "workqueue_scope=None, workqueue_concurrency_limit=None, device_id=None"


def get_num_locality_domains(device_id: int | None = None) -> int:  # noqa: ARG001 -- equal on all devices
    """Return the number of locality domains of a device: always 1.

    As `torch.cuda.green_contexts.get_num_locality_domains`. Does not initialise CUDA.

    Parameters
    ----------
    device_id : int, optional
        Ignored.

    Examples
    --------
    >>> from forebay.cuda import green_contexts
    >>> green_contexts.get_num_locality_domains()
    1
    """
    return 1


def is_localization_supported(device_id: int | None = None) -> bool:  # noqa: ARG001 -- equal on all devices
    """Return False: no device can be partitioned.

    As `torch.cuda.green_contexts.is_localization_supported`. Does not initialise CUDA.

    Parameters
    ----------
    device_id : int, optional
        Ignored.

    Examples
    --------
    >>> from forebay.cuda import green_contexts
    >>> green_contexts.is_localization_supported()
    False
    """
    return False


SMPartition: Final = unsupported_class(
    __name__,
    "SMPartition",
    "__init__(self, _resource, _device_id, _owner=None)",
    "@classmethod from_device(cls, device_id=None)",
    f"split(self, {_SPLIT})",
    "@property device_id(self)",
    "@property sm_count(self)",
    "@property coscheduled_sm_count(self)",
    "@property locality_domain_id(self)",
)
GreenContext: Final = unsupported_class(
    __name__,
    "GreenContext",
    f"__init__(self, *, num_sms=None, sm_partition=None, {_QUEUES})",
    f"@staticmethod create(*, num_sms=None, sm_partition=None, {_QUEUES})",
    f"@staticmethod split({_SPLIT}, {_QUEUES})",
    "@staticmethod max_workqueue_concurrency(device_id=None)",
    "set_context(self)",
    "pop_context(self)",
    "Stream(self)",
    "@property device_id(self)",
    "@property sm_partition(self)",
    "@property sm_count(self)",
    "@property locality_domain_id(self)",
)
