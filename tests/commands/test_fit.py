"""The command `forebay fit`: its table, its status and its errors. The runs are replaced by results."""

from __future__ import annotations

import json

import pytest
from support.json_schemas import check

from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.verdicts import Verdict
from forebay.commands import program_environment
from forebay.commands.cli import main
from forebay.interop.torch import program_versions
from forebay.interop.torch.fit import FitResult, shared_runs
from forebay.interop.torch.fit.tasks import Shared

GIB = 1 << 30
VERDICTS = {
    "h100": Verdict.FITS,
    "h200": Verdict.FITS_AFTER_ERRORS,
    "a100": Verdict.TIGHT,
    "rtx_4090": Verdict.DOES_NOT_FIT,
    "l40s": Verdict.FITS_WITH_OTHER_SETTINGS,
    "t4": Verdict.DID_NOT_FINISH,
    "v100": Verdict.NO_DEVICE_MEMORY,
}


@pytest.fixture
def tasks(monkeypatch):
    given = []

    def run(task, cancel, watch, others, need, template):
        given.append(task)
        verdict = VERDICTS[task.profile]
        found = FitResult(
            task.profile, {}, verdict, 30 * GIB, 30 * GIB, 80 * GIB, {"activations": 20 * GIB}, text=str(verdict),
            message="KeyError: 1", line="train.py:3", needed=None if verdict.fits else 30 * GIB,
            settings=("PYTORCH_ALLOC_CONF=a:b",) if verdict is Verdict.FITS_WITH_OTHER_SETTINGS else (),
            outside=task.outside,
        )  # fmt: skip
        return found, Shared({}, {})

    monkeypatch.setattr(shared_runs, "run_shared", run)
    monkeypatch.setattr("forebay.commands.fit.need_torch", lambda arguments: None)
    return given


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_table_has_a_row_for_each_card(tasks, script, capsys):
    assert main(["fit", "--cards", "rtx_4090,h100", script, "--steps", "2"]) == 1
    assert [(each.profile, each.mode, each.script) for each in sorted(tasks, key=lambda each: each.profile)] == [
        (name, "shapes", (script, "--steps", "2")) for name in ("h100", "rtx_4090")
    ]
    output = capsys.readouterr().out
    assert "30.00 GiB" in output
    assert "fits" in output
    assert "does not fit" in output


@pytest.mark.parametrize(
    ("cards", "status"),
    [
        ("h100", 0),
        ("h100,h200", 0),
        ("h100,a100", 3),
        ("a100,l40s", 1),
        ("rtx_4090,a100,h100", 1),
        ("h100,v100,rtx_4090", 4),
        ("t4,a100", 4),
    ],
)
def test_status_is_that_of_the_worst_card(tasks, script, capsys, cards, status):
    assert main(["fit", "--cards", cards, script]) == status
    if "t4" in cards:
        words = " ".join(capsys.readouterr().out.split())
        assert "t4: did not finish: KeyError: 1, at train.py:3. The figures are the peak so far." in words


def test_json_has_the_verdict_and_the_mode_is_passed(tasks, script, capsys):
    assert main(["fit", "--cards", "rtx_4090", "--compute", "--jobs", "1", "--json", script]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    check("fit", [found])
    assert (found["verdict"], found["fits"], found["needed"]) == ("does not fit", False, 30 * GIB)
    assert tasks[0].mode == "compute"


def test_table_names_what_is_outside_the_allocator_once_for_each_class(tasks, script, capsys):
    main(["fit", "--cards", "h100,h200,rtx_4090", script])
    words = " ".join(capsys.readouterr().out.split())
    assert "nvidia-smi" in words
    assert "30.67 GiB" in words  # 30 GiB and 687 MiB
    assert words.count("h100, h200: 687 MiB (496 to 768), out-of-memory messages of public programs on A100, H100") == 1
    assert "rtx_4090: 468 MiB (261 to 509), out-of-memory messages of public programs on RTX 3090" in words


def test_reserve_sets_what_is_outside_the_allocator(tasks, script, capsys):
    main(["fit", "--cards", "h100", "--reserve", "2GiB", "--json", script])
    (found,) = json.loads(capsys.readouterr().out)
    assert found["outside"] == {"low": 2 * GIB, "value": 2 * GIB, "high": 2 * GIB, "source": "as set by hand"}
    assert found["in_use"]["value"] == 32 * GIB
    assert main(["fit", "--cards", "h100", "--reserve", "200GiB", script]) == 2
    assert "200.00 GiB of 79.19 GiB cannot be reserved: nothing is left" in capsys.readouterr().err


def test_answer_names_its_versions_and_those_that_the_program_asks_for(tasks, script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program_versions, "_installed", lambda name: "2.13.0" if name == "torch" else "")
    (tmp_path / "requirements.txt").write_text("torch==2.1.2\n")
    main(["fit", "--cards", "h100", script])
    words = " ".join(capsys.readouterr().out.split())
    assert "Valid for PyTorch 2.13.0 and CUDA 13.0." in words
    assert "requirements.txt asks for torch==2.1.2, but this is the answer for torch 2.13.0" in words
    main(["fit", "--cards", "h100", "--json", script])
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["versions"]["torch"], found["versions"]["cuda"], len(found["versions"]["warnings"])) == (
        "2.13.0",
        "13.0",
        1,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], "no script to run"),
        (["fit", "-m"], "no module to run: forebay fit -m MODULE"),
        (["fit", "-m", "no_such_module"], "cannot run the module 'no_such_module'"),
        (["fit", "-"], "cannot run standard input on several cards"),
        (["fit", "no_such_command"], "there is no such file, and no such command on PATH"),
        (["fit", "python", "-O", "SCRIPT"], "cannot pass options to python"),
        (["fit", "missing.py"], "there is no such file"),
        (["fit", "--cards", "rtx_4091", "SCRIPT"], "there is no profile 'rtx_4091'"),
    ],
)
def test_errors_are_one_line(tasks, arguments, message, script, capsys):
    assert main([script if each == "SCRIPT" else each for each in arguments]) == 2
    assert message in capsys.readouterr().err


def test_choices_and_limits_are_passed(tasks, script):
    options = ["--assume-mask", "0.25", "--assume-routing", "worst", "--check-assumptions", "--max-seconds", "30"]
    options += ["--check-kernels"]
    assert main(["fit", "--cards", "h100", *options, script]) == 0
    (task,) = tasks
    assert task.assumptions == AssumptionChoices(0.25, "worst")
    assert (task.check_assumptions, task.check_kernels, task.timeout) == (True, True, 30.0)
    tasks.clear()
    assert main(["fit", "--cards", "h100", script]) == 0
    assert (tasks[0].assumptions, tasks[0].check_assumptions, tasks[0].timeout) == (AssumptionChoices(), False, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--assume-mask", "0"], "'0' is not a share above 0 and at most 1"),
        (["--assume-mask", "nan"], "'nan' is not a share"),
        (["--assume-mask", "1.1"], "'1.1' is not a share"),
        (["--assume-routing", "random"], "invalid choice: 'random'"),
        (["--max-seconds", "0"], "'0' is not a number of seconds above 0"),
        (["--max-seconds", "inf"], "'inf' is not a number of seconds"),
    ],
)
def test_wrong_choices_are_refused(options, message, script, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["fit", *options, script])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compute", "--assume-mask", "0.5"], "--assume-mask requires --shapes-only"),
        (["--strict", "--check-assumptions"], "--check-assumptions requires --shapes-only"),
    ],
)
def test_choices_need_a_mode_that_assumes_values(options, message, script, capsys):
    assert main(["fit", *options, script]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["-m", "json.tool", "-x", "--compute"], ("-m", "json.tool", "-x", "--compute")),
        (["-mjson.tool"], ("-m", "json.tool")),
        (["--cards", "h100", "-c", "print(1)", "--strict"], ("-c", "print(1)", "--strict")),
        (["python", "-m", "json.tool"], ("-m", "json.tool")),
        (["--", "SCRIPT", "--json"], ("SCRIPT", "--json")),
    ],
)
def test_forms_of_python_are_programs(tasks, script, capsys, arguments, program):
    main(["fit", *(script if each == "SCRIPT" else each for each in arguments)])
    assert {each.script for each in tasks} == {tuple(script if each == "SCRIPT" else each for each in program)}
    assert {each.mode for each in tasks} == {"shapes"}


def test_error_of_all_cards_is_printed_once(tasks, script, capsys, monkeypatch):
    monkeypatch.setitem(VERDICTS, "h100", Verdict.DID_NOT_FINISH)
    main(["fit", "--cards", "t4,h100", script])
    output = capsys.readouterr().out
    assert output.count("KeyError: 1") == 1
    assert "t4, h100: did not finish" in output


@pytest.mark.parametrize("width", [60, 80, 130])
def test_table_is_as_wide_as_the_terminal(tasks, script, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["fit", "--cards", "rtx_4090,l40s,h100,h200", script]) == 1
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= width
    assert output.startswith("Without values, as --compute was not given")
    words = " ".join(output.split())
    assert ("rtx_4090: needs 30.00 GiB allocated" in words) == (width < 130)
    assert "held most by" in words


def test_pytorch_that_is_missing_is_said_before_any_work(script, capsys, monkeypatch):
    monkeypatch.setattr(program_environment, "find_spec", lambda name: None)
    monkeypatch.setattr(program_environment, "_environments", lambda: iter(()))
    assert main(["fit", script]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "PyTorch is not installed for" in error
