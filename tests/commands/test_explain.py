"""`forebay explain`: text, JSON output, choice of device and event, and error messages."""

from __future__ import annotations

import json
import re

import pytest
from support.annotated_history import annotated
from support.changed_programs import Step
from support.snapshot_programs import MIB, dumped, fragmented, program
from support.snapshot_scenes import training

from forebay import OutOfMemory, simulate
from forebay.commands.cli import main
from forebay.snapshot.formats import native


@pytest.fixture
def full(tmp_path):
    """A pickle that ends out of memory twice: 60 MiB on a device of 96, with 2 MiB live in a segment of 40."""
    path = tmp_path / "full.pickle"
    path.write_bytes(dumped(fragmented(70, 60).snapshot()))
    return path


def explain(capsys, *arguments: object) -> str:
    assert main(["explain", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_explanation_is_printed_without_colors_in_a_pipe(capsys, full):
    out = explain(capsys, full)
    assert out.startswith("cuda:0 ran out of memory\n")
    assert "\x1b" not in out
    assert "    PYTORCH_ALLOC_CONF=expandable_segments:True\n" in out
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize("columns", [40, 60, 160])
def test_text_fits_the_terminal(capsys, monkeypatch, full, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    out = explain(capsys, full)
    assert "\x1b[1;31mcuda:0 ran out of memory" in out
    assert "fragmented" in out


def test_event_and_json_are_chosen(capsys, full):
    (last,) = json.loads(explain(capsys, full, "--json"))
    (first,) = json.loads(explain(capsys, full, "--json", "--error", "0", "--no-replay"))
    assert (last["request"]["event"]["wanted"], first["request"]["event"]["wanted"]) == (60 * MIB, 70 * MIB)
    assert (first["remedies"], last["remedies"]["proved"]) == (None, True)


def test_each_used_device_is_explained(capsys, tmp_path):
    both, other = program(1, steps=200), program(2, steps=200, index=1)
    both["segments"] += other["segments"]
    both["device_traces"] = [both["device_traces"][0], other["device_traces"][1], []]
    path = tmp_path / "both.pickle"
    path.write_bytes(dumped(both))
    out = explain(capsys, path, "--no-replay")
    assert ("Peak of cuda:0" in out, "Peak of cuda:1" in out, "cuda:2" in out) == (True, True, False)
    assert "cuda:0" not in explain(capsys, path, "--no-replay", "--device=cuda:1")
    assert main(["explain", str(path), "--device=cuda:7"]) == 2
    assert "has no device 'cuda:7'; its devices: cuda:0, cuda:1" in capsys.readouterr().err


def test_truncated_file_is_stated(capsys, full):
    content = full.read_bytes()
    full.write_bytes(content[: len(content) * 2 // 3])
    assert main(["explain", str(full), "--no-replay"]) == 0
    out, err = capsys.readouterr()
    assert "The snapshot is truncated: the file ends after" in " ".join(out.split())
    assert err.startswith(f"forebay: {full} is truncated: the file ends after")
    assert err.count("\n") == 1


def test_forebay_snapshot_is_explained(capsys, tmp_path):
    native.write(training(), tmp_path / "run.forebay")
    out = explain(capsys, tmp_path / "run.forebay")
    assert "cpu ran out of memory" in out
    assert "metrics.py:27 History.append" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "cannot read the snapshot 'nosuch': No such file or directory"),
        (["--error", "5"], "cuda:0 has 2 out-of-memory events in its history, so --error 5 is none of them; choose"),
        (["--speed"], "unrecognized arguments: --speed"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(capsys, full, arguments, words):
    try:
        status = main(["explain", *arguments, *([str(full)] if arguments[0] != "nosuch" else [])])
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_device_that_ran_out_is_first_and_others_are_compared(capsys, tmp_path):
    devices = [simulate.Device(96 * MIB, index=number) for number in range(2)]
    states = []
    for number, gpu in enumerate(devices):
        gpu.record_history()
        gpu.allocate((30 + 30 * number) * MIB)
        if number == 1:
            with pytest.raises(OutOfMemory):
                gpu.allocate(60 * MIB)
        states.append(gpu.snapshot())
    merged = states[1] | {
        "segments": [row for state in states for row in state["segments"]],
        "device_traces": [states[0]["device_traces"][0], states[1]["device_traces"][1]],
    }
    path = tmp_path / "two.pickle"
    path.write_bytes(dumped(merged))
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cuda:1 ran out of memory")
    assert "cuda:1 ran out of memory while 66.00 MiB lay unused on cuda:0." in " ".join(out.split())
    assert re.search(r"cuda:0 +30\.00 MiB +30\.00 MiB +66\.00 MiB +no ", out)
    assert out.index("cuda:1 ran out") < out.index("Peak of cuda:0")
    assert main(["report", str(path), "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.index("Memory of cuda:1 · out of memory") < page.index("Memory of cuda:0")


@pytest.fixture
def stepped(tmp_path):
    path = tmp_path / "steps.pickle"
    path.write_bytes(dumped(annotated(4)))
    return path


def test_parts_of_the_history_are_explained(capsys, stepped):
    assert "In the step “ProfilerStep#2”, the most memory was live" in explain(capsys, stepped, "--step", "2")
    assert "After entry 2, 8.00 MiB were live" in explain(capsys, stepped, "--at", "2", "--no-replay")
    (found,) = json.loads(explain(capsys, stepped, "--between", "2ms", "4ms", "--json", "--no-replay"))
    assert (found["cause"], found["chosen"]["selection"]) == (
        "chosen", {"name": "the entries 1 to 2", "begin": 1, "end": 2},
    )  # fmt: skip
    assert found["inside"] == ["ProfilerStep#0", "forward", '{"phase":"forward"}']
    assert found["ranges"][0]["name"] == "ProfilerStep"


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--step", "9"], "has no step 9"), (["--at", "soon"], "is no moment"), (["--between", "9", "2"], "is before")],
)
def test_missing_parts_are_one_line(capsys, stepped, options, said):
    assert main(["explain", str(stepped), *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_devices_without_the_part_are_left_out(capsys, tmp_path):
    both, other = annotated(3), annotated(2, name="x", device=1)
    both["segments"] += other["segments"]
    both["device_traces"] += other["device_traces"][1:]
    path = tmp_path / "both.pickle"
    path.write_bytes(dumped(both))
    assert [each["device"] for each in json.loads(explain(capsys, path, "--at", "25", "--json", "--no-replay"))] == [
        "cuda:0"
    ]


@pytest.fixture
def step(tmp_path):
    """A pickle of a training step that runs out of memory in its backward pass."""
    path = tmp_path / "step.pickle"
    path.write_bytes(dumped(Step().run()[0].snapshot()))
    return path


def test_changes_that_fit_are_suggested(capsys, step):
    out = " ".join(explain(capsys, step).split())
    assert "Changes of the program that avoid this error With each of these changes alone, the request of 90.00" in out
    assert "with 11 of the 12 blocks of changed_programs.py" in out
    assert "What if" not in out
    (found,) = json.loads(explain(capsys, step, "--json"))
    texts = [each["text"].rpartition(" ")[2] for each in found["what_if"]["suggested"]]
    assert texts == ["size=0.75", "blocks=11", "freed-before=backward"]


def test_changes_that_are_asked_for_are_replayed(capsys, step):
    options = ["--what-if", "layer size=0.5", "--what-if=logits freed-before=1; weight size=1"]
    out = explain(capsys, step, *options)
    assert re.search(r"layer size=0.5 +12 +720.00 MiB → 360.00 MiB +[0-9.]+ MiB +yes", out)
    assert re.search(r"freed-before=1; +5 +270.00 MiB +1.14 GiB +no", out)
    (found,) = json.loads(explain(capsys, step, *options, "--json"))
    fits = [(each["text"], each["fits"], each["proved"]) for each in found["what_if"]["asked"]]
    assert fits == [("layer size=0.5", True, True), ("logits freed-before=1; weight size=1", False, False)]


def test_question_about_several_devices_is_of_those_that_have_the_site(capsys, tmp_path, step):
    other = simulate.Device(96 * MIB, index=1)
    other.record_history()
    other.allocate(MIB)
    first, second = Step().run()[0].snapshot(), other.snapshot()
    first["segments"] += second["segments"]
    first["device_traces"] = [first["device_traces"][0], second["device_traces"][1]]
    path = tmp_path / "both.pickle"
    path.write_bytes(dumped(first))
    found = json.loads(explain(capsys, path, "--json", "--what-if", "layer size=0.5"))
    assert [len(each["what_if"]["asked"]) for each in found] == [1, 0]
    assert main(["explain", str(path), "--what-if", "nosuch size=0.5"]) == 2
    assert "no site of cuda:0 matches 'nosuch'; those with the most memory: “" in capsys.readouterr().err


def test_sites_that_could_move_to_another_device_are_named(capsys, tmp_path):
    other = simulate.Device(1200 * MIB, index=1)
    other.record_history()
    other.allocate(700 * MIB)
    first, second = Step().run()[0].snapshot(), other.snapshot()
    first["segments"] += second["segments"]
    first["device_traces"] = [first["device_traces"][0], second["device_traces"][1]]
    path = tmp_path / "both.pickle"
    path.write_bytes(dumped(first))
    out = " ".join(explain(capsys, path).split())
    assert "cuda:0 ran out of memory while 500.00 MiB lay unused on cuda:1." in out
    assert "The file does not contain their memory: assumed is what cuda:0 could reserve, 1.17 GiB for each." in out
    blocks = r"If the blocks of \S+ weight \(120.00 MiB\) or \S+ logits \(150.00 MiB\) were on cuda:1, the request"
    assert re.search(blocks, out)
    found = json.loads(explain(capsys, path, "--json"))
    movable = [each["text"].rpartition(":")[2] for each in found[0]["what_if"]["movable"]]
    assert [text.partition(" ")[2] for text in movable] == ["weight size=0", "logits size=0"]  # layers do not fit there
    assert (found[0]["others"][0]["assumed"], found[1]["others"]) == (True, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--what-if", "layer"], "'layer' is no change: write SITE size=0.5"),
        (["--what-if", "nosuch size=1"], "no site of cuda:0 matches 'nosuch'"),
        (["--what-if", "layer size=1", "--no-replay"], "--what-if needs replays: leave out --no-replay"),
        (["--what-if", "layer freed-before=99"], "freed-before=99: the history of cuda:0 has"),
    ],
)
def test_wrong_question_is_an_error_of_one_line(capsys, step, arguments, words):
    try:
        status = main(["explain", str(step), *arguments])
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err
