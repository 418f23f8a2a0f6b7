"""`torch.backends.cuda`: the part that programs query and set at their start."""

from __future__ import annotations

from forebay.faces.float32_precision import get_float32_matmul_precision, set_float32_matmul_precision

__all__ = ["is_built", "matmul"]


def is_built() -> bool:
    """Return True: every build supports CUDA devices, at least by emulation."""
    return True


class _Matmul:
    """Settings of matrix products, which have no effect."""

    __slots__ = ()

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 products may use TF32: unless the precision is "highest"."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        set_float32_matmul_precision("high" if value else "highest")


matmul = _Matmul()
