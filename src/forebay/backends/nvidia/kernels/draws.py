"""Random fills by kernels, which compute the numbers of the CPU device."""

from __future__ import annotations

import struct

from forebay.backends.nvidia.kernels.launch import KernelQueue, launch_packed
from forebay.backends.nvidia.kernels.sources import MAX_AXES, axes_class, own_program
from forebay.spi import Draw
from forebay.vendor import element_size, is_valid_draw, pack_draw

__all__ = ["launch_draw"]

_BLOCK = 256
_MOST_BLOCKS = 1 << 20  # for distributions whose numbers do not depend on the number of threads
_LAWS = {
    "uniform": "Uniform",
    "normal": "Normal",
    "exponential": "Exponential",
    "bernoulli": "Bernoulli",
    "integers": "Integers",
    "chances": "BernoulliTensor",
    "cauchy": "Cauchy",
    "log_normal": "LogNormal",
    "geometric": "Geometric",
    "poisson": "Poisson",
}
_TYPES = {
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_HEADER, _AXIS = 96, 16  # bytes


def launch_draw(queue: KernelQueue, draw: Draw, source: int = 0) -> None:
    """Queue a random fill.

    `source` is 0 or the address, for the device, of a seed and an offset (two 64-bit integers), which the kernel reads
    when it runs. The draw's seed is not used then, and its offset is added to this one.
    """
    packed = pack_draw(draw)
    if not is_valid_draw(packed) or len(draw.axes) > MAX_AXES:
        raise ValueError(f"invalid draw: {draw}")
    contiguous = not draw.axes or (len(draw.axes) == 1 and draw.axes[0][1] == element_size(draw.element))
    axes = 0 if contiguous else axes_class(len(draw.axes))
    queue.check_usable()
    if not draw.elements:
        return
    law, element = _LAWS[draw.distribution], _TYPES.get(draw.element, draw.element)
    function = queue.context.modules.own_function(
        ("draw", law, element, axes),
        "draw_numbers",
        lambda: own_program("draw.cu", DISTRIBUTION=law, ELEMENT=element, AXES=axes),
    )
    job = packed[:_HEADER] + struct.pack("=Q", source) + packed[_HEADER:]
    job = job.ljust(_HEADER + 8 + max(axes, 1) * _AXIS, b"\0")
    launch_packed(queue, function, (_blocks(draw), 1, 1), (_BLOCK, 1, 1), [job])


def _blocks(draw: Draw) -> int:
    """Return the number of blocks: of threads with work to do."""
    if draw.distribution == "chances":
        return min(-(-draw.elements // (4 * _BLOCK)), _MOST_BLOCKS)
    if draw.distribution == "poisson":
        return min(-(-draw.elements // _BLOCK), _MOST_BLOCKS)
    return min(-(-draw.elements // _BLOCK), draw.threads // _BLOCK)
