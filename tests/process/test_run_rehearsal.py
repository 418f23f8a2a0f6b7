"""`forebay run --shapes-only` and `forebay fit` change no file of the user, with PyTorch programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
from support.rehearsals import NO_NAMESPACE, needs_namespace, tree

from forebay.rehearsal.launch import MECHANISM

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
both = pytest.mark.parametrize("mechanism", [pytest.param("namespace", marks=needs_namespace), "python"])
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
_LIMIT = 300  # seconds: the Trainer imports much

CHECKPOINT = """
    import os, resource, torch
    layers = torch.nn.ModuleList(torch.nn.Linear(16384, 16384, device="cuda", dtype=torch.bfloat16) for _ in range(8))
    known = torch.arange(5)
    torch.save({"layers": layers.state_dict(), "known": known, "ones": torch.ones(3, device="cuda")}, "best.pt")
    found = os.stat("best.pt")
    assert found.st_size > 8 * 16384 * 16384 * 2, found
    assert found.st_blocks * 512 < 1 << 20, found
    for options in ({}, {"mmap": True}, {"map_location": "cpu"}):
        loaded = torch.load("best.pt", **options)
        assert loaded["known"].tolist() == [0, 1, 2, 3, 4]
        assert loaded["ones"].tolist() == [1, 1, 1]
        assert loaded["layers"]["0.weight"].shape == (16384, 16384)
    layers.load_state_dict(torch.load("best.pt")["layers"])
    assert 1 < torch.load("best.pt")["layers"]["0.bias"][0].item() < 2  # an assumed value, and no zero of the file
    torch.save([torch.ones(2)], "ones.pt")
    assert torch.load("ones.pt")[0].tolist() == [1, 1]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20  # KiB
    os.makedirs("out/checkpoint")
    torch.save(layers.state_dict(), "out/checkpoint/model.bin")
    open("out/checkpoint/state.json", "w").write("{}")
    open("out/log.txt", "w").write("step 1")
    open("notes.txt", "a").write("more")
"""


def run(runner, source, *options, mechanism="auto", command="run", status=0):
    runner.limit = _LIMIT
    if not (runner.folder / "script.py").exists():
        runner.write(source)
    if command == "run":
        options = ("--emulate", "cuda:1@h200", "--shapes-only", *options)
    observed = runner.command("-m", "forebay", command, *options, "script.py", env=os.environ | {MECHANISM: mechanism})
    assert observed.status == status, observed.err
    return observed


def files_of(observed):
    return json.loads((observed.output / "summary.json").read_text())["files"]


def inner(paths, runner):
    return [(path if isinstance(path, str) else path["path"]).removeprefix(f"{runner.folder}/") for path in paths]


@pytest.fixture
def before(runner):
    (runner.folder / "best.pt").write_bytes(os.urandom(27_000))
    (runner.folder / "notes.txt").write_text("notes")
    runner.write(CHECKPOINT)
    return tree(runner.folder)


def unchanged(runner):
    """Return the tree without the report and what it lists as created."""
    return {name: text for name, text in tree(runner.folder).items() if not name.startswith("forebay-report")}


@both
def test_checkpoint_takes_no_space_is_read_back_and_changes_nothing(runner, before, mechanism):
    observed = run(runner, CHECKPOINT, mechanism=mechanism)
    found = unchanged(runner)
    assert found.pop("out").startswith("40")
    assert found.pop("out/log.txt")
    assert found == before
    files = files_of(observed)
    assert (files["mechanism"], inner(files["changed"], runner)) == (mechanism, ["best.pt", "notes.txt"])
    assert inner(files["created"], runner) == ["out", "out/log.txt"]
    assert inner(files["not_created"], runner) == ["ones.pt", "out/checkpoint/model.bin", "out/checkpoint/state.json"]
    assert files["not_created"][1]["held"] < 1 << 20 < files["not_created"][1]["nbytes"]
    assert "not changed, although the program changed it:" in observed.err
    assert (observed.output / "report.html").is_file()
    assert "best.pt" in (observed.output / "report.html").read_text()
    assert (mechanism == "python") == ("Programs that are not Python" in " ".join(observed.err.split()))


@both
def test_folder_of_the_report_may_have_files_of_the_user(runner, mechanism):
    runner.write("""
        import os, torch
        torch.save(torch.ones(9, device="cuda"), "results/best.pt")
        torch.save(torch.ones(9, device="cuda"), "results/new.pt")
        open("results/config.json", "w").write("2")
        os.remove("results/old.txt")
        if os.fork() == 0:
            torch.ones(9, device="cuda")
            os._exit(0)
        os.wait()
    """)
    results = runner.folder / "results"
    results.mkdir()
    for name in ("best.pt", "config.json", "old.txt"):
        (results / name).write_text("user")
    (runner.folder / "link").symlink_to("results")
    run(runner, "", "--output", "link/../results", "--dry", mechanism=mechanism)
    files = json.loads((results / "summary.json").read_text())["files"]
    assert {each.name for each in results.iterdir() if not each.name.startswith("process-")} == {
        "best.pt", "config.json", "old.txt", "report.html", "summary.json", "snapshot.forebay", "snapshot.pickle"
    }  # fmt: skip
    assert {(results / name).read_text() for name in ("best.pt", "config.json", "old.txt")} == {"user"}
    assert inner(files["changed"], runner) == ["results/best.pt", "results/config.json"]
    assert inner(files["not_created"], runner) == ["results/new.pt"]


@both
def test_descriptors_of_the_caller_reach_the_program(runner, mechanism):
    """A shell passes those of `<(...)`."""
    runner.write("import sys, torch; torch.ones(9, device='cuda'); print(open(sys.argv[1]).read())")
    reading, writing = os.pipe()
    os.write(writing, b"from the shell")
    os.close(writing)
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "run", "--emulate", "cuda", "--shapes-only", "--quiet", "script.py",
         f"/dev/fd/{reading}"],
        cwd=runner.folder, pass_fds=[reading], capture_output=True, text=True, timeout=_LIMIT, check=False,
        env=os.environ | {MECHANISM: mechanism},
    )  # fmt: skip
    os.close(reading)
    assert (done.returncode, done.stdout, done.stderr) == (0, "from the shell\n", "")


def test_run_inside_a_run_works_in_its_overlay(runner):
    source = """
        import subprocess, sys, torch
        torch.ones(9, device="cuda")
        inner = "import torch; torch.ones(9, device='cuda'); open('notes.txt', 'w').write('inner')"
        command = ["-m", "forebay", "run", "--emulate", "cuda", "--shapes-only", "--quiet", "-c", inner]
        subprocess.run([sys.executable, *command], check=True)
        assert open("notes.txt").read() == "inner"
    """
    (runner.folder / "notes.txt").write_text("notes")
    run(runner, source)
    assert (runner.folder / "notes.txt").read_text() == "notes"


@both
def test_dry_run_creates_only_the_report(runner, before, mechanism):
    observed = run(runner, CHECKPOINT, "--dry", "--quiet", mechanism=mechanism)
    assert observed.err == ""
    assert unchanged(runner) == before
    assert files_of(observed)["created"] == []


def test_dry_needs_a_run_without_values(runner):
    runner.write("")
    observed = runner.command("-m", "forebay", "run", "--emulate", "cuda", "--compute", "--dry", "script.py")
    assert observed.status == 2
    assert "--dry requires a run without values" in observed.err


@both
def test_fit_creates_and_changes_nothing(runner, before, mechanism):
    observed = run(runner, CHECKPOINT, "--cards", "h200", "--json", mechanism=mechanism, command="fit")
    assert tree(runner.folder) == before
    (found,) = json.loads(observed.out)
    assert inner(found["files"]["changed"], runner) == ["best.pt", "notes.txt"]
    assert found["files"]["created"] == []


def test_program_with_values_writes_its_files(runner):
    source = "import torch\ntorch.save(torch.ones(2, device='cuda'), 'new.pt')\nopen('notes.txt', 'w').write('x')"
    (runner.folder / "notes.txt").write_text("notes")
    runner.write(source)
    observed = runner.command("-m", "forebay", "run", "--emulate", "cuda", "--compute", "--quiet", "script.py")
    assert (observed.status, observed.err) == (0, "")
    assert (runner.folder / "notes.txt").read_text() == "x"
    assert (runner.folder / "new.pt").stat().st_size > 100
    assert "files" not in json.loads((observed.output / "summary.json").read_text())


def test_save_under_patch_leaves_an_existing_file(runner):
    """Without a private overlay, saving raises before the file is opened."""
    source = """
        import forebay, forebay.interop.torch, torch
        with forebay.emulate("cuda"), forebay.interop.torch.patch("shapes"):
            for save in (lambda t: torch.save(t, "best.pt"), lambda t: torch.save([torch.ones(2), t], "best.pt")):
                try:
                    save(torch.ones(1 << 20, device="cuda") * 2)
                except forebay.ForebayError as error:
                    assert "a copy to the CPU needs the values" in str(error), error
                else:
                    raise AssertionError
            torch.save(torch.ones(2, device="cuda"), "known.pt")
        print(torch.load("known.pt", map_location="cpu").tolist())
    """
    (runner.folder / "best.pt").write_bytes(b"user")
    observed = runner.python(source)
    assert (observed.status, observed.out, observed.err) == (0, "[1.0, 1.0]\n", "")
    assert (runner.folder / "best.pt").read_bytes() == b"user"


@pytest.mark.skipif(bool(NO_NAMESPACE), reason=NO_NAMESPACE or "there are namespaces")
def test_processes_of_the_program_and_workers_are_covered(runner):
    source = """
        import subprocess, sys, torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, at):
                open("notes.txt", "a").write(f"{at} ")
                return torch.ones(2)
        if __name__ == "__main__":
            for each in torch.utils.data.DataLoader(Data(), num_workers=2): pass
            subprocess.run("echo shell >> notes.txt", shell=True, check=True)
            subprocess.run([sys.executable, "-c", "open('notes.txt', 'a').write('python')"], check=True)
            text = open("notes.txt").read()
            assert "shell" in text and "python" in text and "3 " in text, text
            torch.ones(2, device="cuda")
    """
    (runner.folder / "notes.txt").write_text("notes")
    run(runner, source)
    assert (runner.folder / "notes.txt").read_text() == "notes"


@both
def test_killed_run_leaves_the_files(runner, before, mechanism):
    runner.write("open('notes.txt', 'w').write('x'); print('ready', flush=True); import signal; signal.pause()")
    now = tree(runner.folder)
    running = subprocess.Popen(
        [sys.executable, "-m", "forebay", "run", "--emulate", "cuda", "--shapes-only", "script.py"], cwd=runner.folder,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | {MECHANISM: mechanism},
    )  # fmt: skip
    assert running.stdout.readline() == b"ready\n"
    running.kill()
    running.wait(_LIMIT)
    assert running.stdout.read() == b""  # the program has ended, too
    running.stdout.close()
    assert unchanged(runner) == now


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_signal_reaches_the_program_and_the_status_is_its(runner, number, status):
    runner.write("import sys, time; print('ready', flush=True); time.sleep(60)")
    running = subprocess.Popen(
        [sys.executable, "-m", "forebay", "run", "--emulate", "cuda", "--shapes-only", "--quiet", "script.py"],
        cwd=runner.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(number)
    _, errors = running.communicate(timeout=_LIMIT)
    assert running.returncode == status, errors


TRAINER = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Tokens(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            ids = torch.randint(0, 500, (16,))
            return {"input_ids": ids, "labels": ids}

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500))
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=8, max_steps=3, report_to=[], save_strategy="steps", save_steps=1,
        save_total_limit=2, logging_steps=1, push_to_hub=True, hub_model_id="someone/model",
    )
    trainer = Trainer(model, arguments, train_dataset=Tokens())
    assert 0 < trainer.train().training_loss < 2
    print(trainer.push_to_hub().oid)
    print(GPT2LMHeadModel.from_pretrained("out/checkpoint-3").config.n_layer)
"""


@needs_transformers
@both
def test_trainer_with_checkpoints_changes_nothing_but_listed_new_files(runner, mechanism):
    old = runner.folder / "out" / "checkpoint-3"
    old.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "config.json", "generation_config.json", "trainer_state.json"):
        (old / name).write_bytes(os.urandom(100))
    (runner.folder / "out" / "checkpoint-1").mkdir()
    (runner.folder / "out" / "checkpoint-1" / "model.safetensors").write_bytes(b"old")
    runner.write(TRAINER)
    before = tree(runner.folder)
    observed = run(runner, TRAINER, mechanism=mechanism)
    assert observed.out.split()[-2:] == ["0" * 40, "2"]
    files = files_of(observed)
    found = unchanged(runner)
    created = inner(files["created"], runner)
    assert {name: text for name, text in found.items() if name not in created} == before
    assert (
        set(found) - set(before) == set(created) == {"out/README.md", "out/config.json", "out/generation_config.json"}
    )
    assert {"out/checkpoint-3/model.safetensors", "out/checkpoint-3/optimizer.pt"} <= set(
        inner(files["changed"], runner)
    )
    assert "out/checkpoint-2/model.safetensors" in inner(files["not_created"], runner)
    assert any("nothing is uploaded" in each for each in files["services"])
