"""PyTorch programs under `forebay run --emulate cuda`."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec

import pytest
from support.json_schemas import check

from forebay import snapshot
from forebay.interop.torch import on_import

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

TRAINING = """
    import torch
    print(torch.cuda.get_device_name(), torch.cuda.is_available())
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = model(torch.ones(1024, 256).cuda()).square().mean()
        loss.backward()
        optimizer.step()
    SHOW
"""


def run(runner, source, *options):
    """Run a program with values, unless the options name another mode."""
    runner.write(source)
    mode = () if {"--shapes-only", "--strict"} & {*options} else ("--compute",)
    return runner.command("-m", "forebay", "run", "--emulate", "cuda:1@rtx_4090", *mode, *options, "script.py")


@needs_torch
def test_unchanged_program_uses_the_emulated_device_and_its_peak_is_attributed(runner):
    observed = run(runner, TRAINING.replace("SHOW", "print(loss.item() > 0)"))
    assert (observed.status, observed.out) == (0, "NVIDIA GeForce RTX 4090 (emulated) True\nTrue\n"), observed.err
    assert "PyTorch: the program fits on cuda:0 (NVIDIA GeForce RTX 4090)" in observed.err
    summary = json.loads((observed.output / "summary.json").read_text())
    check("summary", summary)
    assert (summary["verdict"], summary["verdict_text"], summary["verdict_reasons"]) == ("fits", "fits", [])
    (found,) = summary["torch"]
    assert (found["verdict"], found["ooms"], found["is_exact"]) == ("fits", 0, True)
    assert "PyTorch: the program fits on cuda:0" in (observed.output / "report.html").read_text()
    names = {each["name"] for each in found["categories"]}
    assert names >= {"parameters", "gradients", "optimizer state", "activations"}
    assert sum(each["nbytes"] for each in found["categories"]) == found["peak_allocated"]
    assert any("script.py" in each["name"] for each in found["lines"])
    (viewed,) = snapshot.load(observed.output / "snapshot.pickle")
    assert viewed.device == "cuda:0"
    assert len(viewed.trace) > 0
    innermost = [next(iter(viewed.stack(int(each["stack"])))) for each in viewed.trace if each["stack"]]
    assert len(innermost) > 50
    assert not any("/src/forebay/" in frame.file for frame in innermost)  # the kernels


@needs_torch
def test_mode_is_without_values_by_default_and_the_first_line_says_so(runner):
    runner.write("import torch; print(torch.rand(9, device='cuda').sum().item() > 0)")
    observed = runner.command("-m", "forebay", "run", "--emulate", "cuda", "-m", "script")
    assert (observed.status, observed.out) == (0, "True\n"), observed.err
    sentence = "Without values, as --compute was not given; values that are read are assumed."
    assert sentence in observed.err.splitlines()
    assert json.loads((observed.output / "summary.json").read_text())["mode"] == sentence


@needs_torch
def test_shapes_only_lists_the_lines_that_received_assumed_values(runner):
    observed = run(runner, TRAINING.replace("SHOW", "print(loss.item())"), "--shapes-only")
    assert observed.status == 0
    assert 1 < float(observed.out.split()[-1]) < 2
    assert "Assumed values\n" in observed.err
    assert "script.py:10: print(loss.item())" in observed.err
    assert "a number slightly above 1 that falls with each read" in observed.err
    (folder,) = runner.folder.glob("forebay-report")
    (assumed,) = json.loads((folder / "summary.json").read_text())["assumptions"]
    assert assumed["line"].endswith("script.py:10: print(loss.item())")
    assert assumed["times"] >= 1


@needs_torch
def test_strict_runs_without_values_and_names_the_line_that_reads_one(runner):
    observed = run(runner, TRAINING.replace("SHOW", ""), "--strict", "--quiet")
    assert (observed.status, observed.err) == (0, "")
    observed = run(runner, TRAINING.replace("SHOW", "print(loss.item())"), "--strict")
    assert observed.status == 1
    assert "script.py:10: print(loss.item())" in observed.err
    assert "PyTorch: the program did not finish on cuda:0" in observed.err
    assert "The peak so far is" in observed.err
    (folder,) = runner.folder.glob("forebay-report-2")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["verdict"] == summary["torch"][0]["verdict"] == "did not finish"
    assert summary["ended_by"].startswith("DataDependent: .item() needs the values")
    assert summary["ended_at"].endswith("script.py:10")
    assert "the program did not finish on cuda:0" in (folder / "report.html").read_text()


@needs_torch
def test_out_of_memory_is_explained(runner):
    source = "import torch\nkept = torch.ones(60 << 18, device='cuda')\ntorch.ones(60 << 18, device='cuda')"
    observed = run(runner, source, "--memory", "100MiB")
    assert observed.status == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00 MiB" in observed.err
    assert "cuda:0 ran out of memory" in observed.err
    assert "PyTorch: the program does not fit on cuda:0" in observed.err
    summary = json.loads((observed.output / "summary.json").read_text())
    assert summary["verdict"] == "does not fit"
    assert "A request for 60.00 MiB of cuda:0 ran out of memory" in summary["verdict_reasons"][0]
    assert "settings that were tried by replay" in " ".join(observed.err.split())


CHILDREN = """
    import multiprocessing, subprocess, sys

    def work(name):
        import torch
        print(name, torch.ones(3, device="cuda").sum().item(), flush=True)

    if __name__ == "__main__":
        for method in ("spawn", "fork"):
            child = multiprocessing.get_context(method).Process(target=work, args=(method,))
            child.start()
            child.join()
        subprocess.run([sys.executable, "-c", "import torch; print('command', torch.cuda.device_count())"], check=True)
        print("torch" in sys.modules)
"""


@needs_torch
def test_child_processes_use_the_emulated_device(runner):
    observed = run(runner, CHILDREN)
    assert (observed.status, observed.out) == (0, "spawn 3.0\nfork 3.0\ncommand 1\nFalse\n"), observed.err
    assert "PyTorch: the program fits on cuda:0 (NVIDIA GeForce RTX 4090)" in observed.err
    assert "Processes that used cuda:0" in observed.err
    summary = json.loads((observed.output / "summary.json").read_text())
    (found,) = summary["torch"]
    assert (summary["verdict"], len(found["processes"]), found["peak_reserved"] > 0) == ("fits", 2, True)
    assert summary["pid"] not in [each["pid"] for each in found["processes"]]


SILENT = """
    import os, torch
    kept = torch.ones(8 << 18, device="cuda")
    try:
        torch.ones(60 << 18, device="cuda")
    except torch.OutOfMemoryError:
        kept = torch.ones(4 << 18, device="cuda")
    os._exit(0)
"""


@needs_torch
def test_verdict_survives_an_exit_without_handlers_and_counts_caught_errors(runner):
    observed = run(runner, SILENT, "--memory", "64MiB", "--json")
    assert observed.status == 0
    summary = json.loads(observed.err)
    assert summary["verdict"] == "fits after caught out-of-memory errors"
    assert summary["verdict_text"] == "fits after 1 caught out-of-memory error"
    assert summary["verdict_reasons"] == ["The last request that failed was for 60.00 MiB."]
    assert summary["torch"][0]["failed"] == 60 << 20


FILLS = """
    import torch
    held = torch.empty((24081 - 400) << 20, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    print(free >> 20, total >> 20)
"""


@needs_torch
def test_memory_outside_the_allocator_counts_in_the_verdict(runner):
    observed = run(runner, FILLS)
    assert (observed.status, observed.out) == (0, "137 24080\n")  # 24080.88 MiB less 23682, and 261 outside
    assert "468.00 MiB   261.00 MiB to 509.00 MiB" in observed.err
    summary = json.loads((observed.output / "summary.json").read_text())
    assert summary["verdict"] == "tight"
    assert summary["versions"]["cuda"] == "13.0"
    (found,) = summary["torch"]
    assert (found["outside"]["low"], found["outside"]["high"]) == (261 << 20, 509 << 20)
    assert found["in_use"]["value"] == found["peak_reserved"] + (468 << 20)
    assert "468 MiB (261 to 509) outside the allocator" in (observed.output / "report.html").read_text()


@needs_torch
@pytest.mark.parametrize(("reserve", "verdict"), [("0", "fits"), ("401MiB", "does not fit")])
def test_reserve_of_the_user_decides(runner, reserve, verdict):
    observed = run(runner, FILLS, "--reserve", reserve, "--json")
    assert json.loads(observed.err.splitlines()[-1])["verdict"] == verdict


@needs_torch
def test_program_that_uses_no_device_memory_is_not_said_to_fit(runner):
    observed = run(runner, "import torch; print(torch.zeros(3).sum().item())")
    assert (observed.status, observed.out) == (0, "0.0\n")
    assert "PyTorch: no device memory used" in observed.err
    summary = json.loads((observed.output / "summary.json").read_text())
    assert (summary["verdict"], summary["torch"]) == ("no device memory used", [])


def test_program_without_pytorch_has_no_such_section(runner):
    observed = run(runner, "import sys; print('torch' in sys.modules, 'torch' in dir())")
    assert (observed.status, observed.out) == (0, "False False\n")
    assert "PyTorch:" not in observed.err
    assert not {"torch", "verdict"} & {*json.loads((observed.output / "summary.json").read_text())}
    assert not (observed.output / "snapshot.pickle").exists()


def test_shapes_only_without_emulated_cuda_devices_is_refused(runner):
    runner.write("print(1)")
    observed = runner.command("-m", "forebay", "run", "--shapes-only", "script.py")
    assert observed.status == 2
    assert "--shapes-only requires emulated CUDA devices" in observed.err


def test_environment_of_other_runs_is_unchanged(runner):
    source = f"import os; print(os.environ.get({on_import.VARIABLE!r}))"
    runner.write(source)
    observed = runner.command("-m", "forebay", "run", "--quiet", "script.py", env=dict(os.environ))
    assert (observed.status, observed.out) == (0, "None\n")


def test_ranks_of_a_distributed_program_write_to_directories_of_their_own(runner):
    runner.write("print(1)")
    for rank in "01":
        environment = os.environ | {"RANK": rank, "WORLD_SIZE": "2"}
        observed = runner.command("-m", "forebay", "run", "--quiet", "script.py", env=environment)
        assert observed.status == 0
    assert sorted(path.name for path in runner.folder.glob("forebay-report*")) == [
        "forebay-report-rank-0",
        "forebay-report-rank-1",
    ]


def test_version_without_the_interfaces_is_refused_with_the_reason(runner):
    runner.write("import torch", "torch/none.py")
    runner.write("__version__ = '1.0'\n", "torch/__init__.py")
    observed = run(runner, "import torch")
    assert observed.status == 1
    assert "PyTorch 1.0 cannot emulate CUDA devices" in observed.err


@needs_torch
@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
@pytest.mark.parametrize("options", [[], ["--shapes-only"]])
def test_process_that_a_shell_starts_without_the_emulation_is_named(runner, options):
    observed = run(
        runner,
        """
        import os, sys, torch
        x = torch.ones(1 << 20, device="cuda")
        os.system(f"env -i {sys.executable} -c 'import torch; torch.ones(3)'")
        """,
        *options,
    )
    assert observed.status == 0, observed.err
    summary = json.loads((observed.output / "summary.json").read_text())
    assert summary["verdict"] == "did not finish"
    assert "used PyTorch without emulated devices" in summary["ended_by"]


@needs_torch
def test_shell_without_pytorch_does_not_matter(runner):
    observed = run(runner, "import os, torch\nx = torch.ones(9, device='cuda')\nos.system('env -i sleep 1')")
    assert json.loads((observed.output / "summary.json").read_text())["verdict"] == "fits"


@needs_torch
def test_strict_reports_a_read_also_when_the_program_catches_the_error(runner):
    caught = "try:\n        loss.item()\n    except Exception:\n        pass"
    observed = run(runner, TRAINING.replace("SHOW", caught), "--strict")
    assert observed.status == 0
    summary = json.loads((runner.folder / "forebay-report" / "summary.json").read_text())
    assert summary["verdict"] == "did not finish"
    assert "script.py:11: loss.item(). The program caught the error." in summary["verdict_reasons"][0]


@needs_torch
def test_choices_reach_started_processes_and_opposite_ones_are_tried(runner):
    source = """
        import subprocess, sys
        code = "import torch; x = torch.randn(1 << 22, device='cuda'); print(x[x > 0].numel())"
        subprocess.run([sys.executable, "-c", code], check=True)
    """
    observed = run(runner, source, "--shapes-only", "--assume-mask", "0.25", "--check-assumptions")
    assert (observed.status, observed.out) == (0, f"{1 << 20}\n"), observed.err
    assert "Assumed values (0.25 of the elements of masks)" in observed.err
    assert "The peak depends on them: with the opposite choices, it is " in observed.err
    summary = json.loads((runner.folder / "forebay-report" / "summary.json").read_text())
    assert summary["choices"] == {"mask": 0.25, "routing": "balanced"}
    check = summary["assumption_check"]
    (device,) = summary["torch"]
    assert (check["depends"], check["opposite"]["outcome"]) == (True, "differs")
    assert check["opposite"]["peak_allocated"] < device["peak_allocated"]
    page = (runner.folder / "forebay-report" / "report.html").read_text()
    assert 'aria-label="Assumed values"' in page
    assert "The peak depends on them: with the opposite choices, it is " in page


@needs_torch
def test_program_that_takes_too_long_is_reported_with_its_line(runner):
    source = """
        import time
        import torch
        x = torch.ones(1 << 20, device="cuda")
        while True:
            time.sleep(0.01)
    """
    observed = run(runner, source, "--shapes-only", "--max-seconds", "6")
    assert observed.status == 124
    assert "script.py:6: time.sleep(0.01)" in observed.err
    summary = json.loads((runner.folder / "forebay-report" / "summary.json").read_text())
    assert (summary["verdict"], summary["ended_by"]) == ("did not finish", "the run took longer than 6 s")
    assert summary["torch"][0]["peak_allocated"] >= 4 << 20
