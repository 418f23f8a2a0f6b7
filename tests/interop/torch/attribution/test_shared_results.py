"""Results of one run for other cards: those of runs of their own, to the byte, on each pair of cards."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

import forebay  # noqa: E402 -- after the test for PyTorch
from forebay import profiles  # noqa: E402 -- as above
from forebay.interop.torch.devices import other_cards  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- as above
from forebay.runtime.history import recording  # noqa: E402 -- as above

MIB = 1 << 20
CARDS = profiles.names("cuda")


def properties(card):
    return profiles.load(card).properties


def capability(card):
    return properties(card)["major"], properties(card)["minor"]


def processors(card):
    return properties(card)["multi_processor_count"]


ONE_OF_EACH_KIND = [*{capability(card): card for card in CARDS}.values()]
MOST_OF_EACH_KIND = [*{capability(card): card for card in sorted(CARDS, key=processors)}.values()]
FEWEST_OF_EACH_KIND = [*{capability(card): card for card in sorted(CARDS, key=processors, reverse=True)}.values()]


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x):
        heads = self.norm(x).view(*x.shape[:2], 4, -1).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def train_transformer():
    model = torch.nn.Sequential(Block(256), Block(256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = torch.randn(8, 128, 256).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_convolutions():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 3)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = model(torch.randn(16, 3, 64, 64).cuda()).sum()
        loss.backward()
        optimizer.step()


def reduce_tensors():
    x = torch.ones(1 << 24, device="cuda")
    held = [x.sum(), x.view(64, -1).sum(1), x.view(-1, 64).mean(0), x.std()]
    held += [x.view(1 << 10, -1).amax(1), x[: 3 << 20].view(3, -1).sum(1)]
    y = torch.nn.functional.layer_norm(x.view(-1, 16).requires_grad_(), (16,), torch.ones(16, device="cuda"))
    y.sum().backward()
    return held


def decode():
    query = torch.randn(1, 2, 1, 64, device="cuda", dtype=torch.float16)
    keys = torch.randn(1, 2, 4096, 64, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for length in range(256, 4096, 256):
            past = keys[:, :, :length]
            query = torch.nn.functional.scaled_dot_product_attention(query, past, past)


def use_deterministic_attention():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        x = torch.randn(1, 2, 512, 64, device="cuda", dtype=torch.float16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def ask_for_the_capability():
    wide = torch.cuda.get_device_capability() >= (8, 0)
    torch.ones(4 * MIB if wide else MIB, device="cuda")


def ask_for_fields():
    found = torch.cuda.get_device_properties("cuda")
    torch.ones(found.multi_processor_count << 12, device="cuda")
    torch.ones(found.warp_size << 12, device="cuda")


def fill_half_of_the_free_memory():
    free, _ = torch.cuda.mem_get_info()
    torch.empty(free // 2, dtype=torch.uint8, device="cuda")


def read_what_is_allocated():
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        x = (x.view(1024, -1) @ x.view(-1, 1024)).flatten()
    torch.empty(torch.cuda.max_memory_allocated(), dtype=torch.uint8, device="cuda")


def fill_the_cache():
    held = [torch.empty(9 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    del held
    x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    torch.empty(20 * MIB, dtype=torch.uint8, device="cuda").view(2, -1).sum()
    return x


PROGRAMS = [
    train_transformer, train_convolutions, reduce_tensors, decode, use_deterministic_attention, ask_for_the_capability,
    ask_for_fields, fill_half_of_the_free_memory, read_what_is_allocated, fill_the_cache,
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_other_cards():
    yield
    other_cards.begin(())


def own_run(program, card, memory, others):
    """Return what a run on a card does there, and what it tells about other cards."""
    gc.collect()
    gc.freeze()  # the end of the emulation collects again, and the attribution looks at all objects
    with forebay.emulate("cuda", profile=card, memory=memory):
        recording.set_default("cuda", lambda pool: recording.start(pool, context=None, max_entries=100_000))
        other_cards.begin(others)
        session = TorchSession("shapes")
        session.start()
        try:
            failed = False
            try:
                program()
            except torch.OutOfMemoryError:
                failed = True
            (use,) = session.results()
            workspaces = session.most_workspaces().get(0, 0)
            shared = session.shared_results()
        finally:
            session.stop()
    found = {each.name: each.nbytes for each in use.categories}
    return (failed, use.peak_allocated, use.peak_reserved, workspaces, found), shared


def compare(program, cards):
    """Run a program on each card, compare with what all others tell about it, and return who tells about whom."""
    runs = {
        name: own_run(program, card, memory, [(other, each, 0) for other, each in cards.values() if other != card])
        for name, (card, memory) in cards.items()
    }
    told = {}
    for name, (_, shared) in runs.items():
        told[name] = set(shared)
        for other, (found,) in shared.items():
            (failed, *peaks, categories), _ = runs[other]
            assert found["ran_out"] == failed, (name, other)
            if not failed:
                held = {each["name"]: each["nbytes"] for each in found["categories"]}
                assert [found[each] for each in ("allocated", "reserved", "workspaces")] == peaks, (name, other)
                assert held == categories, (name, other)
    return runs, told


def groups(told):
    """Return the sets of cards that tell about each other."""
    return {frozenset(others | {card}) for card, others in told.items()}


def cards_by(fact, cards):
    return {frozenset(other for other in cards if fact(other) == fact(card)) for card in cards}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_shared_results_are_those_of_own_runs(program):
    """On all cards where the number of multiprocessors decides; on two of each kind where the kernel does, as well."""
    some = {*MOST_OF_EACH_KIND, *FEWEST_OF_EACH_KIND} if program is train_transformer else ONE_OF_EACH_KIND
    cards = CARDS if program is reduce_tensors else some
    compare(program, {card: (card, None) for card in cards})


@pytest.mark.parametrize(
    ("program", "fact"),
    [
        (train_convolutions, lambda card: "all"),
        (ask_for_the_capability, capability),
        (fill_half_of_the_free_memory, lambda card: properties(card)["total_memory"]),
        (read_what_is_allocated, lambda card: capability(card) == (9, 0)),  # the workspace of cuBLAS
    ],
)
def test_cards_with_other_answers_do_not_share(program, fact):
    _, told = compare(program, {card: (card, None) for card in ONE_OF_EACH_KIND})
    assert groups(told) == cards_by(fact, ONE_OF_EACH_KIND)


@pytest.mark.parametrize(
    ("program", "least", "step"), [(train_transformer, 34, 1), (fill_the_cache, 203, 3), (reduce_tensors, 264, 7)]
)
def test_cards_with_little_memory_release_their_cache_or_run_out(program, least, step):
    cards = {card: (card, (least + step * number) * MIB) for number, card in enumerate(ONE_OF_EACH_KIND)}
    runs, told = compare(program, cards)
    assert {failed for (failed, *_), _ in runs.values()} == {False, True}
    assert any(told.values())


@pytest.mark.parametrize("change", ["fraction", "settings", "pool", "stream"])
def test_nothing_is_shared_where_no_replay_is_exact(change):
    def program():
        x = torch.ones(MIB, device="cuda")
        x * 2  # the first product imports what it needs
        if change == "fraction":
            torch.cuda.set_per_process_memory_fraction(0.5)
        elif change == "settings":
            with pytest.warns(FutureWarning):
                torch.cuda.memory._set_allocator_settings("max_split_size_mb:32")
        elif change == "pool":
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                torch.ones(MIB, device="cuda")
        else:
            other = torch.cuda.Stream()
            with torch.cuda.stream(other):
                torch.cuda._sleep(1_000_000_000)
                (x * 2).record_stream(torch.cuda.current_stream())
            x.record_stream(other)
            del x
        torch.ones(MIB, device="cuda")

    _, shared = own_run(program, "h100", None, [("h200", None, 0)])
    assert shared == {}
