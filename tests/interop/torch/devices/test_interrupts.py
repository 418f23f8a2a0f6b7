"""Signal handlers that raise, and RecursionErrors, at any instruction of forebay: no memory of a device is lost."""

from __future__ import annotations

import gc
import random
import signal
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from support.interrupts import count_points, reaches_caller  # noqa: E402 -- after PyTorch, without which it is skipped
from torch import nn  # noqa: E402 -- as above

FOLDER = "src/forebay"
MOST = 50  # points of a program, chosen at random


def allocate():
    made = [torch.empty(1 << 20, device="cuda"), torch.zeros(9, device="cuda"), torch.randn(7, device="cuda")]
    made.append(torch.empty_like(made[0]).copy_(made[0]))


def view():
    x = torch.zeros(4, 6, device="cuda")
    views = [x.view(-1), x.t(), x[1:], x.unfold(0, 2, 1), x.expand(3, 4, 6), x.chunk(2)[1], x.detach()]
    views[2].add_(1)


def read():
    x = torch.tensor([3, 4]).cuda()
    return x.sum().item(), x.tolist(), x.cpu()


def run_modules():
    layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 2)).cuda()
    layers(torch.randn(4, 8, device="cuda"))


def run_backward():
    x, w = (torch.randn(8, 8, device="cuda", requires_grad=True) for _ in range(2))
    (x @ w).relu().softmax(-1).pow(2).sum().backward()
    torch.autograd.grad((x * w).sum(), x)


def train():
    layer = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    layer(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def resize():
    x = torch.ones(100, device="cuda")
    for nbytes in (0, 400, 800, 400):
        x.untyped_storage().resize_(nbytes)
    x.add_(1)
    torch.mul(x, 2, out=torch.empty(0, device="cuda"))
    x.untyped_storage()._swap_data_ptr_(torch.ones(100, device="cuda").untyped_storage())


def pin():
    x = torch.ones(100).pin_memory()
    x.cuda(non_blocking=True).to("cpu", non_blocking=True)


def use_streams():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(1000, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
    x.grad.record_stream(torch.cuda.default_stream())
    x.detach().record_stream(torch.cuda.default_stream())
    del x


PROGRAMS = [allocate, view, read, run_modules, run_backward, train, resize, pin, use_streams]


def used():
    torch.cuda.synchronize()
    torch.ones(1).pin_memory()  # completes the frees that waited for copies
    return torch.cuda.memory_allocated(), torch.cuda.host_memory_stats()["active_bytes.current"]


def is_lost(before):
    """Return True if memory is used that no reference cycle keeps alive."""
    return used() != before and gc.collect() >= 0 and used() != before


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_at_any_point_loses_nothing_and_arrives(request, monkeypatch, program, mode):
    request.getfixturevalue(mode)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # what is not raised is seen below
    for _ in range(2):
        program()  # workspaces are kept
    gc.collect()
    before, count = used(), count_points(program, FOLDER)
    for point in random.Random(3).sample(range(1, count + 1), min(MOST, count)):
        assert reaches_caller(program, FOLDER, point), f"the interrupt at point {point} was swallowed"
        assert not is_lost(before), f"after the interrupt at point {point}"
        assert torch.cuda.current_stream() == torch.cuda.default_stream(), f"after the interrupt at point {point}"
    program()


class Stop(BaseException):
    """The exception of a signal handler of a program."""


def test_interrupts_of_a_timer_lose_nothing(emulated, monkeypatch):
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: swallowed.append(error.exc_value))
    before, chance, hits, armed = used(), random.Random(1), 0, False

    def interrupt(*_):
        if armed:
            raise Stop

    handler = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + 60
    try:
        while hits < 500 and time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3), 1e-3)
                armed = True
                while True:
                    torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
            except Stop:
                armed = False
                hits += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert (hits, swallowed, is_lost(before)) == (500, [], False)


def test_a_recursion_error_loses_nothing(emulated, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    torch.ones(1, device="cuda")
    before = used()
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back

    def call_below(levels, function):
        return call_below(levels - 1, function) if levels else function()

    for left in range(2, 60):
        kept = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda")]
        try:
            call_below(sys.getrecursionlimit() - depth - left, kept.clear)
        except RecursionError:
            kept.clear()
        assert not is_lost(before)
