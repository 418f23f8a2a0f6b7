"""Values of large memory that are known: recorded calls, views and writes, and the budget."""

from __future__ import annotations

import random
import threading

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from forebay.interop.torch.devices.emulated_memory import memory_of  # noqa: E402 -- needs torch
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above
from forebay.interop.torch.kernels import known_memory  # noqa: E402 -- as above
from forebay.interop.torch.kernels.known_values import known_values  # noqa: E402 -- as above

ROWS, COLUMNS = 96, 128  # 96 KiB of int64: more than what is computed at once


def ids():
    return torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS).remainder(97)


def lengths():
    return torch.arange(ROWS).remainder(COLUMNS) + 1


def padding(device):
    return torch.arange(COLUMNS, device=device)[None] < lengths().to(device)[:, None]


def causal(device, count=512):
    at = torch.arange(count, device=device)
    return at[None, :] <= at[:, None]


def extended(device):
    """T5's and BERT's mask of attention."""
    mask = torch.ones_like(ids().to(device))[:, None, None, :].to(torch.float32)
    return (1.0 - mask) * torch.finfo(torch.float32).min


def labels(device):
    made = ids().to(device)
    made[:, -5:] = -100
    return made


def one_hot(device):
    return torch.nn.functional.one_hot(ids().to(device), 97)


def buffer_of_positions(device):
    made = torch.zeros(ROWS, COLUMNS, dtype=torch.int64, device=device)
    made[3].copy_(torch.arange(COLUMNS))
    made[:, 5] = 7
    made[10:20, ::2] += 3
    return made


KNOWN = {
    "padding": padding,
    "its sum": lambda device: padding(device).sum(),
    "its lengths": lambda device: padding(device).sum(-1),
    "positions of a mask": lambda device: padding(device).long().cumsum(-1) - 1,
    "causal": causal,
    "triangle": lambda device: torch.tril(torch.ones(512, 512, device=device)),
    "triangle of booleans": lambda device: torch.ones(512, 512, dtype=torch.bool, device=device).triu(1),
    "causal and padded": lambda device: causal(device, COLUMNS)[None] & padding(device)[:, None, :],
    "inverted": lambda device: torch.zeros(512, 512, device=device).masked_fill(~causal(device), float("-inf")),
    "filled and cut": lambda device: torch.triu(torch.full((512, 512), float("-inf"), device=device), diagonal=1),
    "extended": extended,
    "labels": labels,
    "chosen labels": lambda device: (made := labels(device))[made != -100],
    "one hot": one_hot,
    "counts": lambda device: torch.bincount(ids().to(device).flatten()),
    "order": lambda device: ids().to(device).flatten().argsort(stable=True),
    "written": buffer_of_positions,
    "spaced": lambda device: torch.linspace(0, 1000, 20001, device=device).long(),
    "another type": lambda device: ids().to(device).to(torch.int16).view(torch.uint8),
    "gathered": lambda device: ids().to(device).gather(1, ids().to(device)),
    "concatenated": lambda device: torch.cat([ids().to(device), ids()[:, :1].to(device)], 1),
    "shifted": lambda device: ids().to(device).roll(1, 1).masked_fill_(~padding(device), 3),
    "distinct": lambda device: torch.unique(ids().to(device)),
    "split": lambda device: torch.stack(ids().to(device).chunk(2, 1)),
    "long chain": lambda device: [x := ids().to(device), *(x.add_(1) for _ in range(150))][-1],
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_large_integers_and_masks_are_known(shapes_only, name):
    found, expected = KNOWN[name]("cuda"), KNOWN[name]("cpu")
    assert found.shape == expected.shape
    assert torch.equal(found.cpu(), expected)


def test_masks_take_no_memory_until_they_are_read(shapes_only):
    mask = causal("cuda", 1 << 14) & causal("cuda", 1 << 14).t()  # 256 MiB
    assert memory_of(mask).known.storage is None
    assert not known_memory._kept


def test_masks_without_room_are_unknown(shapes_only):
    mask = causal("cuda", 1 << 15)  # 1 GiB
    with pytest.raises(DataDependent):
        mask[0, 0].item()


def test_kept_values_have_a_budget(shapes_only):
    given = [torch.arange(8 << 20).cuda() for _ in range(5)]  # 64 MiB each
    kept = [known_values(each) is not None for each in given]
    assert 1 <= sum(kept) <= 4
    assert sum(each().nbytes for each in known_memory._kept.values()) <= known_memory.BUDGET
    del given
    assert not known_memory._kept


def test_the_host_may_change_what_it_has_copied(shapes_only):
    source = ids()
    copied = source.cuda()
    source.zero_()
    assert torch.equal(copied.cpu(), ids())


def test_records_keep_values_from_before_a_write(shapes_only):
    x = ids().cuda()
    doubled = x * 2
    part = x[4:8]
    x[5].zero_()
    y = x + 0
    x.fill_(1)
    assert torch.equal(doubled.cpu(), ids() * 2)
    expected = ids()
    expected[5] = 0
    assert torch.equal(y.cpu(), expected)
    assert part.unique().tolist() == [1]


def test_captured_writes_are_unknown(shapes_only):
    x, y = ids().cuda(), torch.zeros(ROWS, COLUMNS, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x)
        z = x + 1
    graph.replay()
    for each in (y, z):
        with pytest.raises(DataDependent):
            each[0, 0].item()


def test_indices_out_of_range_leave_unknown_values(shapes_only):
    taken = ids().cuda().index_select(1, torch.full((COLUMNS * 64,), 1000).cuda())
    with pytest.raises(DataDependent):
        taken[0, 0].item()


def test_threads_share_the_budget(shapes_only):
    seen, failed = [], []

    def work():
        try:
            seen.extend(int((ids().cuda() != 0).sum()) for _ in range(20))
        except Exception as error:  # noqa: BLE001 -- the thread's result
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert (set(seen), failed) == ({int((ids() != 0).sum())}, [])


# Random programs: each step takes tensors of both devices, and does the same with them.


def _two(pool, rng):
    first = rng.choice(pool)
    return first, rng.choice([each for each in pool if each[0].shape == first[0].shape])


def _random_row(pair, rng):
    at = rng.randrange(pair[0].shape[0])
    return pair[0][at : at + 7], pair[1][at : at + 7]


def step(pool, rng):
    """Return a pair of new tensors, or None after a write."""
    (x, dx), (y, dy) = _two(pool, rng)
    number, kind = rng.randrange(-3, 9), rng.randrange(26)
    match kind:
        case 0:
            return x + y, dx + dy
        case 1:
            return x * number, dx * number
        case 2:
            return (x > y).long(), (dx > dy).long()
        case 3:
            return torch.where(x > number, x, y), torch.where(dx > number, dx, dy)
        case 4:
            return tuple(each.t().clone(memory_format=torch.contiguous_format).t() for each in (x, dx))
        case 5:
            return x.cumsum(1).remainder(64), dx.cumsum(1).remainder(64)
        case 6:
            return x.flip(0), dx.flip(0)
        case 7:
            return x.roll(number, 1), dx.roll(number, 1)
        case 8:
            return x.sort(1).values, dx.sort(1).values
        case 9:
            return x.argsort(dim=1, stable=True), dx.argsort(dim=1, stable=True)
        case 10:
            return torch.tril(x), torch.tril(dx)
        case 11:
            return x.clamp(0, 5), dx.clamp(0, 5)
        case 12:
            return x[:, :1].expand_as(x), dx[:, :1].expand_as(dx)  # a view, which later writes change
        case 13:
            return x.float().mul(0.5).long(), dx.float().mul(0.5).long()
        case 14:
            return torch.full_like(x, number), torch.full_like(dx, number)
        case 15:
            x.add_(number), dx.add_(number)
        case 16:
            (a, b), value = _random_row((x, dx), rng), number
            a.fill_(value), b.fill_(value)
        case 17:
            x[:, 3:9].copy_(y[:, 4:10].clone()), dx[:, 3:9].copy_(dy[:, 4:10].clone())
        case 18:
            x.copy_(y), dx.copy_(dy)
        case 19:
            x.masked_fill_(y > 3, number), dx.masked_fill_(dy > 3, number)
        case 20:
            x[x > 5] = number
            dx[dx > 5] = number
        case 21:
            x[:, 2].zero_(), dx[:, 2].zero_()
        case 22:
            torch.mul(x, 2, out=x), torch.mul(dx, 2, out=dx)
        case 23:
            source = torch.arange(x.shape[1])
            x[1].copy_(source), dx[1].copy_(source)
        case 24:  # nobody knows these values
            dx[2].copy_(torch.randint(0, 9, (x.shape[1],), device="cuda"))
            return x, None
        case 25:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                copied = dy.clone()
            return y.clone(), copied
    return None


def _writable(pair):
    return 0 not in pair[0].stride()


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_know_the_values_of_pytorch_or_none(shapes_only, seed):
    rng = random.Random(seed)
    rows, columns = rng.choice([(8, 16), (80, 96)])
    pool = [(x := torch.arange(rows * columns).reshape(rows, columns) % (5 + at), x.cuda()) for at in range(3)]
    pool.append(
        (torch.zeros(rows, columns, dtype=torch.int64), torch.zeros(rows, columns, dtype=torch.int64, device="cuda"))
    )
    for _ in range(120):
        made = step([each for each in pool if _writable(each)], rng)
        if made is not None and made[1] is None:  # its values differ from now on: it leaves with all that shares it
            memory = made[0].untyped_storage()._cdata
            pool = [each for each in pool if each[0].untyped_storage()._cdata != memory] or [
                (torch.ones_like(made[0]), torch.ones_like(made[0]).cuda())
            ]
        elif made is not None:
            pool.append(made)
        pool = pool[-7:]
        if rng.random() < 0.2:
            on_host, on_device = rng.choice(pool)
            known = known_values(on_device)
            assert known is None or torch.equal(known, on_host)
    checked = [(known_values(each), host) for host, each in pool]
    assert all(known is None or torch.equal(known, host) for known, host in checked)
    assert any(known is not None for known, _ in checked)
