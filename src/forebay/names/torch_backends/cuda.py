"""`torch.backends.cuda`: the part that programs query and set at their start."""

from __future__ import annotations

from typing import Final

from forebay.names.float32_precision import get_float32_matmul_precision, set_float32_matmul_precision

__all__ = ["is_built", "matmul"]


def is_built() -> bool:
    """Return True: every build supports CUDA devices, at least by emulation."""
    return True


class _Matmul:
    """Settings of matrix products, which have no effect."""

    __slots__ = ("allow_fp16_accumulation", "bf16_reduction", "fp16_reduction")
    bf16_reduction: tuple[bool, bool]
    fp16_reduction: tuple[bool, bool]

    def __init__(self) -> None:
        self.allow_fp16_accumulation: bool = False
        # Whether sums may have reduced precision, and whether they may be split.
        self.fp16_reduction = self.bf16_reduction = (True, True)

    @property
    def allow_tf32(self) -> bool:
        """True if float32 products may use TF32: unless the precision is "highest"."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        set_float32_matmul_precision("high" if value else "highest")

    @property
    def allow_fp16_reduced_precision_reduction(self) -> bool:
        """True if sums of float16 products may be in float16."""
        return self.fp16_reduction[0]

    @allow_fp16_reduced_precision_reduction.setter
    def allow_fp16_reduced_precision_reduction(self, value: bool) -> None:
        self.fp16_reduction = value, True

    @property
    def allow_bf16_reduced_precision_reduction(self) -> bool:
        """True if sums of bfloat16 products may be in bfloat16."""
        return self.bf16_reduction[0]

    @allow_bf16_reduced_precision_reduction.setter
    def allow_bf16_reduced_precision_reduction(self, value: bool) -> None:
        self.bf16_reduction = value, True


matmul: Final = _Matmul()
