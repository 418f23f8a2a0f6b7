"""Copies of tensors on the software driver: to the host, and between devices."""

from __future__ import annotations

import sys

import pytest
from support.software_driver import lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import ctypes, threading
import forebay
from forebay import cuda

soft = ctypes.CDLL("libcuda.so.1")
LIMIT = 30
"""


def output_of(program: str, **variables: str) -> list[str]:
    return lines_of(BEGIN + program, **variables)


def test_converting_copy_to_the_host_does_not_wait_and_is_pinned():
    program = """
there, stream, gate = forebay.arange(4, device="cuda"), cuda.current_stream(), threading.Event()
stream.queue.call(lambda: gate.wait(LIMIT))
copies = [there.to("cpu", dtype, non_blocking=True) for dtype in (None, forebay.float64, forebay.bfloat16)]
print(stream.query(), [each.is_pinned() for each in copies])
gate.set()
stream.synchronize()
copies.append(there.view(2, 2).transpose(0, 1).to("cpu", forebay.int8, non_blocking=True))  # by way of pageable memory
print([each.tolist() for each in copies], copies[-1].is_pinned())
print(there.to("cpu", forebay.float64).is_pinned())
"""
    assert output_of(program) == [
        "False [True, True, True]",
        "[[0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0], [[0, 2], [1, 3]]] True",
        "False",
    ]


PEERS = """
ACCESS = b"cuCtxEnablePeerAccess"
def allocations():  # Note [Temporaries of copies]
    return [cuda.memory_stats(at).get("allocation.all.allocated", 0) for at in (0, 1)]
there, here = forebay.arange(6, device="cuda:0").view(2, 3), forebay.zeros(3, 2, device="cuda:1")
print(cuda.can_device_access_peer(0, 1), soft.softcuda_calls(ACCESS))
print(there.to("cuda:1").tolist(), soft.softcuda_calls(ACCESS))
before = allocations()
here.copy_(there.transpose(0, 1))
print([now - then for now, then in zip(allocations(), before)])
print(here.tolist(), here.device, there.to("cuda:1", forebay.float64).tolist())
with cuda.device(1):  # on the stream of the destination's device, not of the current one
    there.copy_(here.transpose(0, 1))
print(there.tolist(), there.device)
"""


@pytest.mark.parametrize(("possible", "enabled", "temporaries"), [("1", 2, [0, 0]), ("0", 0, [1, 1])])
def test_copies_between_devices_with_and_without_peer_access(possible, enabled, temporaries):
    assert output_of(PEERS, SOFTCUDA_PEERS=possible) == [
        f"{possible == '1'} 0",
        f"[[0, 1, 2], [3, 4, 5]] {enabled}",
        str(temporaries),
        "[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] cuda:1 [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
        "[[0, 1, 2], [3, 4, 5]] cuda:0",
    ]
