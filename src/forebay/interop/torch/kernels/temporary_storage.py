"""Temporary storage of CUB's algorithms, which PyTorch's sorts and selections call, by the rules of its host code.

CUB sizes the buffer of a radix sort by the tile that a block of threads processes, which depends on the sizes of keys
and values and on the compute capability. The rules agree with PyTorch 2.15 over the oracle (9.0) and with sorts
recorded on GPUs of capability 8.
"""

from __future__ import annotations

from forebay.interop.torch.devices.other_cards import card_bytes
from forebay.interop.torch.kernels.scratch_memory import bytes_by_capability
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["bits_of", "count_bytes", "pair_sort_bytes", "segment_sort_bytes", "selection_bytes", "sort_bytes"]

_ALIGNMENT = 256
_SHARED_BYTES = 48 << 10  # of a block of threads
_DIGIT_BITS, _DIGITS = 8, 256
_OFFSET_BYTES = 8
_PORTION = (1 << 28) - 1  # at most so many elements are sorted at once
_COUNT_TILE, _COUNT_THREADS, _SUBSCRIPTION = 4096, 256, 5
_WARP = 32
# Threads and elements of each for keys of 1 and 2 bytes on devices of capability 9.0, by the bytes of key and value.
_SMALL_KEYS = {
    (1, 0): (512, 19), (2, 0): (512, 19), (1, 1): (448, 16), (1, 2): (512, 14), (1, 4): (512, 14), (1, 8): (384, 18),
    (2, 1): (384, 16), (2, 2): (448, 16), (2, 4): (512, 12), (2, 8): (512, 23),
}  # fmt: skip


def bits_of(largest: int) -> int:
    """Return how many bits of an index are sorted if none is larger."""
    return max(1, largest.bit_length())


def sort_bytes(
    opened: OpenDevice, count: int, key: int, value: int, bits: int | None = None, *, floating: bool = False
) -> int:  # fmt: skip
    """Return the bytes that a radix sort takes besides its four buffers; `value` is 0 if only keys are sorted.

    `floating` says whether the keys are.
    """
    if count <= _tile(256, 19, max(key, value)):
        return 1
    bits = key * 8 if bits is None else bits

    def rule(version: tuple[int, int]) -> int:
        tile = _tile(*_onesweep(version, key, value, floating), max(key, value))
        return _sort_of_tiles(tile, count, key, value, bits)

    return bytes_by_capability(opened, rule, ("sort", count, key, value, bits, floating))


def _sort_of_tiles(tile: int, count: int, key: int, value: int, bits: int) -> int:
    portion = _PORTION // tile * tile
    passes, portions = -(-bits // _DIGIT_BITS), -(-count // portion)
    blocks = -(-min(count, portion) // tile)
    spare = passes > 1
    return _together(
        portions * passes * _DIGITS * _OFFSET_BYTES,
        blocks * _DIGITS * 4,
        count * key if spare else 0,
        count * value if spare else 0,
        portions * passes * 4,
    )


def pair_sort_bytes(count: int, key: int, value: int) -> int:
    """Return the bytes that a sort of keys by comparisons takes, with a value for each."""
    return _together(count * key, count * value, 1)


def segment_sort_bytes(count: int, key: int, value: int) -> int:
    """Return the bytes that a sort of segments takes: buffers for keys and values."""
    return _together(count * key, count * value)


def selection_bytes(count: int, key: int) -> int:
    """Return the bytes that a selection of elements takes for the states of its tiles: nonzero() and unique()."""
    tile = 6400 if key == 4 else 4224
    return _together((-(-count // tile) + _WARP) * 8, 1)


def count_bytes(opened: OpenDevice, count: int) -> int:
    """Return the bytes that the count of nonzero elements takes."""
    if count <= _COUNT_TILE:
        return 1

    def rule(processors: int, threads: int) -> int:
        return _together(processors * (threads // _COUNT_THREADS) * _SUBSCRIPTION * 4)

    return card_bytes(opened, ("multi_processor_count", "max_threads_per_multi_processor"), rule, "count")


def _together(*sizes: int) -> int:
    """Return the bytes of one buffer for several parts, the beginning of which may have to be aligned."""
    return sum(-(-each // _ALIGNMENT) * _ALIGNMENT for each in sizes) + _ALIGNMENT - 1


def _tile(threads: int, items: int, width: int) -> int:
    """Return the elements of a block; both numbers are meant for elements of 4 bytes."""
    items = max(1, items * 4 // max(4, width))
    most = -(-_SHARED_BYTES // (width * items))
    return min(threads, -(-most // _WARP) * _WARP) * items


def _onesweep(version: tuple[int, int], key: int, value: int, floating: bool) -> tuple[int, int]:
    """Return the threads of a block and the elements of each for elements of 4 bytes."""
    if version >= (9, 0):
        if key < 4:
            return _SMALL_KEYS.get((key, value), (384, 23))
        if key == 4:
            return 384, 19 - floating if not value else 17 if value < 8 else 29
        return 384, 30 if value < 8 else 24
    if version >= (8, 0):
        return 384, 17 if key == 4 and value else 21
    return 256, 46 if key == 4 and value == 4 else 23
