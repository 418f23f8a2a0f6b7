"""The memory of training loops: the context manager and the callbacks of libraries, on an emulated GPU."""

from __future__ import annotations

import sys
import types
import warnings
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay import emulate, profiles  # noqa: E402 -- after the check for PyTorch
from forebay._base.verdicts import Verdict  # noqa: E402 -- after the check for PyTorch
from forebay.errors import ForebayWarning, WrongState  # noqa: E402 -- after the check for PyTorch
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- after the check for PyTorch
from forebay.interop.torch.training import MemoryWatch, StepPeak  # noqa: E402 -- after the check for PyTorch
from forebay.interop.torch.training.memory_watch import _by_bounds  # noqa: E402 -- after the check for PyTorch

GIB = 1 << 30
WITHOUT = "is not installed: dev.py packages installs it"


@pytest.fixture(scope="module")
def device():
    """Emulate an H100 for all tests of the file."""
    session = TorchSession("compute")
    with emulate("cuda", profile="h100"):
        session.start()
        yield
        session.stop()


@pytest.fixture
def gpu(device):
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def reserve(gib):
    return torch.empty(gib << 30, dtype=torch.uint8, device="cuda")


def test_each_step_has_its_peak_and_the_end_answers_for_other_cards(gpu, tmp_path, capsys):
    with MemoryWatch(tmp_path, cards=["t4", "l4", "a100"]) as memory:
        for gib in (2, 16, 4):
            reserve(gib)
            memory.step()
    assert [each.allocated for each in memory.peaks] == [2 * GIB, 16 * GIB, 4 * GIB]
    assert memory.largest == StepPeak(1, 0, 16 * GIB, 18 * GIB)
    assert [each.verdict for each in memory.fits] == [Verdict.DOES_NOT_FIT, Verdict.FITS, Verdict.FITS]
    printed = capsys.readouterr().err
    assert "the largest peak was 16.00 GiB allocated and 18.00 GiB reserved on cuda:0, in step 1" in printed
    assert "  t4    does not fit: memory runs out after 2.00 GiB of 14.75 GiB reserved\n" in printed
    assert memory.written == ()


def test_explanation_is_added_to_the_exception(gpu, tmp_path):
    kept = reserve(3)
    with pytest.raises(torch.OutOfMemoryError) as error, MemoryWatch(tmp_path, quiet=True) as memory:
        reserve(1000)
    (path,) = memory.written
    note = error.value.__notes__[-1]
    assert note.startswith(f"forebay: snapshot {path}, explanation {path.stem}.txt\ncuda:0 ran out of memory\n")
    assert "requested 1000.00 GiB" in note
    assert path.with_suffix(".txt").exists()
    del kept


def test_other_exceptions_and_caught_errors_get_no_wrong_answer(gpu, tmp_path, capsys):
    with pytest.raises(KeyError) as error, MemoryWatch(tmp_path):
        raise KeyError
    assert not hasattr(error.value, "__notes__")
    with MemoryWatch(tmp_path) as memory, pytest.raises(torch.OutOfMemoryError):
        reserve(1000)
    assert len(memory.written) == 1
    assert "no device memory was used" in capsys.readouterr().err


def test_watch_can_be_used_again_and_not_twice_at_once(gpu, tmp_path):
    memory = MemoryWatch(tmp_path, quiet=True)
    with memory, pytest.raises(WrongState):
        memory.start()
    memory.stop()
    memory.step()
    with memory:
        reserve(1)
    assert memory.steps == 1


def test_history_that_is_too_long_gives_bounds_only(gpu, tmp_path):
    with MemoryWatch(tmp_path, cards=["t4", "a100"], entries=4, quiet=True) as memory:
        for _ in range(20):
            reserve(16)
            torch.cuda.empty_cache()
    assert [each.verdict for each in memory.fits] == [Verdict.DOES_NOT_FIT, Verdict.FITS]
    assert _by_bounds("t4", 10 * GIB, 15 * GIB).verdict is None
    assert "forebay fit --cards t4" in _by_bounds("t4", 10 * GIB, 15 * GIB).text


def test_arguments_are_checked_at_once(tmp_path):
    with pytest.raises(ValueError, match="h1000"):
        MemoryWatch(tmp_path, cards=["h1000"])
    assert {*MemoryWatch().cards} <= {*profiles.names("cuda")}


def test_without_a_gpu_nothing_is_watched_and_the_program_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(_C=None, __version__="0"))
    with pytest.warns(ForebayWarning, match="built without CUDA"), MemoryWatch(tmp_path) as memory:
        memory.step()
    assert "built without CUDA" in memory.why_not
    assert (memory.peaks, memory.fits) == ((), ())


class Loss(torch.nn.Module):
    """A model with a loss, as transformers wants one."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(256, 256)

    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}


class Data(torch.utils.data.Dataset):
    """Vectors."""

    def __len__(self):
        return 32

    def __getitem__(self, at):
        return {"x": torch.ones(256)}


@pytest.mark.skipif(find_spec("transformers") is None, reason=f"transformers {WITHOUT}")
def test_callback_of_transformers(gpu, tmp_path, capsys, monkeypatch):
    from transformers import Trainer, TrainingArguments

    from forebay.interop.torch.training import TransformersMemory

    monkeypatch.chdir(tmp_path)
    memory = TransformersMemory(cards=["t4"])
    options = {"per_device_train_batch_size": 8, "max_steps": 3, "report_to": [], "save_strategy": "no"}
    arguments = TrainingArguments("out", disable_tqdm=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Trainer(Loss(), arguments, train_dataset=Data(), callbacks=[memory]).train()
        assert memory.watch.steps == 3
        assert [each.verdict for each in memory.watch.fits] == [Verdict.FITS]
        assert "t4  fits: " in capsys.readouterr().err

        class Hungry(Data):
            def __getitem__(self, at):
                return {"x": reserve(1000)}

        with pytest.raises(torch.OutOfMemoryError):
            Trainer(Loss(), arguments, train_dataset=Hungry(), callbacks=[memory]).train()
        assert [path.suffix for path in memory.watch.written] == [".pickle"]
        Trainer(Loss(), arguments, train_dataset=Data(), callbacks=[memory]).train()  # after a failed one


@pytest.mark.skipif(find_spec("accelerate") is None, reason=f"accelerate {WITHOUT}")
def test_hook_of_accelerate(gpu, tmp_path, capsys):
    from accelerate.hooks import add_hook_to_module, remove_hook_from_module

    from forebay.interop.torch.training import AccelerateMemory

    model = Loss().cuda()
    hook = AccelerateMemory(folder=tmp_path, cards=["t4"])
    add_hook_to_module(model, hook, append=True)
    for _ in range(3):
        model(torch.ones(8, 256, device="cuda"))["loss"].backward()
    assert hook.watch.steps == 2
    remove_hook_from_module(model)
    assert hook.watch.steps == 3 or hook.watch.largest is not None
    assert "t4  fits: " in capsys.readouterr().err


@pytest.mark.skipif(find_spec("pytorch_lightning") is None, reason="Lightning belongs to the extra packages, not torch")
def test_callback_of_lightning(gpu, tmp_path, capsys, monkeypatch):
    import pytorch_lightning as lightning

    from forebay.interop.torch.training import LightningMemory

    class Module(lightning.LightningModule):
        def __init__(self, size):
            super().__init__()
            self.layer, self.size = torch.nn.Linear(256, 256), size

        def training_step(self, batch, at):
            kept = reserve(self.size)
            return self.layer(batch["x"]).square().mean() + 0 * kept[0]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    monkeypatch.chdir(tmp_path)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "max_steps": 2, "accelerator": "cuda", "devices": 1}
    loader = torch.utils.data.DataLoader(Data(), batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory = LightningMemory(cards=["t4", "l4"])
        lightning.Trainer(callbacks=[memory], **quiet).fit(Module(16), loader)
        assert memory.watch.steps == 2
        assert [each.verdict for each in memory.watch.fits] == [Verdict.DOES_NOT_FIT, Verdict.FITS]
        with pytest.raises(torch.OutOfMemoryError) as error:
            lightning.Trainer(callbacks=[memory], **quiet).fit(Module(1000), loader)
    assert any("cuda:0 ran out of memory" in note for note in error.value.__notes__)
    assert [*(tmp_path / "forebay-oom").iterdir()]
