"""Memory that grows over iterations, or that an exception or a closure keeps: found, and named with its line."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

import forebay  # noqa: E402 -- after the test for PyTorch
from forebay.interop.torch.attribution.text import kept_sentences  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- as above

MIB = 1 << 20


@pytest.fixture(params=["compute", "shapes"])
def session(request):
    with forebay.emulate("cuda", profile="rtx_4090", memory="256MiB"):
        found = TorchSession(request.param)
        found.start()
        yield found
        found.stop()


def net():
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()


def kept_of(session):
    (use,) = session.results()
    return use.kept


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return found


def sum_of_losses(model, count):
    total = 0
    for _ in range(count):
        x = torch.ones(1024, 256, device="cuda")
        total = total + model(x).square().mean()  # kept
    return total


def test_graph_of_a_sum_of_losses_is_named_after_an_out_of_memory_error(session):
    model, begun = net(), []
    model.register_forward_pre_hook(lambda *_: begun.append(1))
    with pytest.raises(torch.OutOfMemoryError):
        sum_of_losses(model, 1000)
    (found,) = kept_of(session)
    assert (found.category, found.holder, found.through) == ("activations", "total", "")
    assert found.line == line_of(sum_of_losses, "# kept")
    assert found.file == __file__
    assert len(begun) - 1 <= found.iterations <= len(begun)
    assert 60 < len(begun) < 90
    assert found.share > 0.8
    (sentence,) = kept_sentences(session.results()[0])
    start = f"Activations of {found.iterations} iterations are held by `total`, test_growth.py:{found.line}"
    assert sentence.startswith(start)


def test_growth_that_fits_is_named(session):
    sum_of_losses(net(), 40)
    (found,) = kept_of(session)
    assert (found.holder, found.category) == ("total", "activations")
    assert 36 <= found.iterations <= 41


def test_last_holder_of_a_graph_is_named(session):
    kept = sum_of_losses(net(), 40)
    (found,) = kept_of(session)
    assert (found.holder, found.category) == ("kept", "activations")
    assert kept is not None


class Trainer:
    def __init__(self):
        self.model, self.history = net(), []
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def train(self):
        for _ in range(20):
            out = self.model(torch.ones(1024, 256, device="cuda"))
            out.mean().backward()
            self.optimizer.step()
            self.history.append(out)  # kept


def test_list_of_outputs_in_a_training_is_named(session):
    trainer = Trainer()
    trainer.train()
    (found,) = kept_of(session)
    assert found.holder in ("trainer.history", "self.history")
    assert found.line == line_of(Trainer, "# kept")
    assert found.iterations >= 15


def test_training_without_growth_has_none(session):
    model, optimizer = net(), None
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(12):
        for _ in range(4):
            model(torch.ones(1024, 256, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert kept_of(session) == ()


def test_unrolled_calls_of_each_iteration_are_no_growth(session):
    model = torch.nn.Linear(256, 256).cuda()
    for _ in range(6):
        state = torch.ones(1024, 256, device="cuda")
        for _ in range(20):
            state = torch.relu(model(state))
        state.mean().backward()
    assert kept_of(session) == ()


def failing(model):
    features = model(torch.ones(16384, 256, device="cuda"))
    raise RuntimeError(f"no label for {features.shape}")


def test_memory_that_an_exception_keeps_is_named(session):
    model = net()
    last = None
    try:
        failing(model)
    except RuntimeError as error:
        last = error
    model(torch.ones(16384, 256, device="cuda"))
    found = [each for each in kept_of(session) if each.through == "exception"]
    assert [(each.holder, each.detail) for each in found] == [("features", "RuntimeError last")]
    assert "kept by the exception RuntimeError (`last`): its traceback has `features`" in found[0].text
    assert last is not None


def make_closure():
    table = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
    return lambda: table


def test_memory_that_a_closure_keeps_is_named(session):
    function = make_closure()
    (found,) = kept_of(session)
    assert (found.holder, found.through, found.nbytes) == ("table", "closure", 32 * MIB)
    assert found.line == line_of(make_closure, "table = torch.ones")
    assert callable(function)


def test_results_survive_the_way_to_another_process(session):
    from forebay.interop.torch.attribution.results import peak_use_of

    total = sum_of_losses(net(), 20)
    (use,) = session.results()
    assert use.kept
    assert peak_use_of(use.as_json()).kept == use.kept
    assert total is not None
