"""The output of every command with --json has the schema in the documentation, and no other keys."""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import sys
from pathlib import Path

import jsonschema
import pytest
from support.annotated_history import annotated
from support.json_schemas import FOLDER, check, validator
from support.snapshot_programs import dumped, fragmented, program
from support.snapshot_scenes import training, training_run

from forebay.commands import doctor
from forebay.commands.cli import COMMANDS, main
from forebay.commands.top_sites import as_json, with_sites
from forebay.observe.monitor.collect import collect
from forebay.observe.monitor.figures import Readings
from forebay.observe.monitor.machine import MachineFigures
from forebay.observe.monitor.sensors import MachineGpu
from forebay.snapshot.formats import native

WITHOUT_FIGURES = {"exporter", "mcp", "demo", "viewer"}  # services, and commands that write pages
TESTED_ELSEWHERE = {"run", "fit"}  # tests/process/test_run_summary.py, tests/interop/torch/fit


@pytest.fixture
def files(tmp_path: Path, monkeypatch) -> Path:
    """Return a folder with snapshots: an error, a history that grows, named ranges, two devices, and no history."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "CHECKS", doctor.CHECKS[:2])  # all of them take half a minute
    both, other = program(1, steps=30), program(2, steps=30, index=1)
    both["segments"] += other["segments"]
    both["device_traces"] = [both["device_traces"][0], other["device_traces"][1]]
    Path("oom.pickle").write_bytes(dumped(fragmented(70, 60).snapshot()))
    Path("both.pickle").write_bytes(dumped(both))
    native.write(training(), "training.forebay")
    native.write(training_run().snapshot(), "run.forebay")
    Path("ranges.pickle").write_bytes(dumped(annotated()))
    native.write(training_run().snapshot(recorded=False), "none.forebay")
    return tmp_path


ALL = ["oom.pickle", "both.pickle", "training.forebay", "run.forebay", "ranges.pickle", "none.forebay"]
CALLS = [
    *(["explain", each] for each in ALL),
    ["explain", "oom.pickle", "--no-replay"],
    ["explain", "ranges.pickle", "--step", "1"],
    ["explain", "oom.pickle", "--what-if", "* size=0.5"],
    *(["view", each] for each in ALL),
    ["diff", "run.forebay", "training.forebay"],
    ["diff", "none.forebay", "run.forebay", "--depth", "2"],
    ["ranks", "."],
    ["tune", "oom.pickle"],
    ["tune", "run.forebay", "training.forebay"],
    ["replay", "oom.pickle", "--check", "--settings", "max_split_size_mb:32"],
    ["replay", "both.pickle"],
    ["report", "oom.pickle", "both.pickle"],
    ["convert", "both.pickle", "out.forebay"],
    ["convert", "oom.pickle", "out.folded"],
    ["info"],
    ["info", "--abilities"],
    ["doctor"],
    ["top"],
]


def output(capsys, *arguments: str) -> object:
    main([*arguments, "--json"])
    out, _ = capsys.readouterr()
    return json.loads(out)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_output_has_its_schema(capsys, files, call):
    found = output(capsys, *call)
    check("info-abilities" if "--abilities" in call else call[0], found)
    assert found


def test_every_command_is_tested():
    called = {call[0] for call in CALLS}
    assert called | TESTED_ELSEWHERE | WITHOUT_FIGURES == {*COMMANDS}
    for name in COMMANDS.keys() - WITHOUT_FIGURES:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"forebay.commands.{name}").add_arguments(parser)
        assert "--json" in parser.format_help(), name


def test_figures_of_processes_and_gpus_have_their_schema(files):
    gpu = MachineGpu(0, "GPU-1", Readings(memory_used=1, memory_total=2, busy=0.5), {7: None, 8: 1})
    found = with_sites(MachineFigures((collect(5),), (gpu,), {9: "it did not reply"}))
    check("top", json.loads(json.dumps(as_json(found))))


def test_unknown_and_missing_keys_are_refused(capsys, files):
    (found,) = output(capsys, "view", "oom.pickle")
    for change in ({"more": 1}, {"sites": [{**found["sites"][0], "more": 1}]}, {"entries": "7"}, {"device": None}):
        with pytest.raises(jsonschema.ValidationError):
            check("view", [{**found, **change}])
    for name in found:
        less = copy.deepcopy(found)
        del less[name]
        with pytest.raises(jsonschema.ValidationError):
            check("view", [less])


def test_schemas_are_those_of_the_types(root):
    sys.path.insert(0, str(root / "tools"))
    try:
        import write_schemas
    finally:
        sys.path.remove(str(root / "tools"))
    for name in write_schemas.SCHEMAS:
        assert FOLDER.joinpath(f"{name}.schema.json").read_text("utf-8") == write_schemas.text_of(name), name
        validator(name)
    assert {path.name.partition(".")[0] for path in FOLDER.glob("*.schema.json")} == {*write_schemas.SCHEMAS, "summary"}
