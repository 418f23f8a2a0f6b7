"""`forebay tune`: the table, the line to paste, JSON output, workers of Dask, and error messages."""

from __future__ import annotations

import json
import sys

import pytest
from support.changed_programs import Step
from support.snapshot_programs import MIB, dumped, fragmented, program

from forebay import simulate
from forebay.commands.cli import main


@pytest.fixture
def full(tmp_path):
    """A pickle that ends out of memory: 60 MiB on a device of 96, with 2 MiB live in a segment of 40."""
    path = tmp_path / "full.pickle"
    path.write_bytes(dumped(fragmented(60).snapshot()))
    return path


def tune(capsys, *arguments: object) -> str:
    assert main(["tune", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_ranked_table_and_line_to_paste_are_printed(capsys, full):
    lines = tune(capsys, full).splitlines()
    assert lines[0] == "cuda:0: 3 allocations and frees, replayed with 96.00 MiB of memory"
    text = " ".join(" ".join(lines).split())
    assert "Least: no settings of this allocator can reserve less than 40.00 MiB: 40.00 MiB were live at once" in text
    assert "Packing: with all lifetimes known in advance, one piece of 40.00 MiB holds all blocks (best fit" in text
    rows = [line.split() for line in lines if " MiB" in line and line.startswith("  ")]
    assert ["as", "recorded", "40.00", "MiB", "0.0%", "0.0%", "1", "1"] in rows
    assert [row[-1] for row in rows] == sorted((row[-1] for row in rows), key=lambda word: word != "no")
    assert lines[-1] == "    PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_grid_settings_and_capacity_are_chosen(capsys, full):
    out = tune(capsys, full, "--capacity=200MiB", "--settings=max_split_size_mb:128", "--json",
               "--grid", "expandable_segments=,True", "roundup_power2_divisions=2,4")  # fmt: skip
    value = json.loads(out)
    assert value["memory"] == [200 * MIB]
    assert {trial["settings"] for trial in value["trials"]} == {
        "max_split_size_mb:128",
        *(f"{grown}roundup_power2_divisions:{n}" for grown in ("", "expandable_segments:True,") for n in (2, 4)),
    }
    assert (value["recorded"]["failures"], value["best"]["failures"]) == (0, 0)


def test_memory_that_no_setting_can_do_with_is_said(capsys, full, tmp_path):
    out = " ".join(tune(capsys, full, "--capacity=30MiB").split())
    assert "The least needs 10.00 MiB more than the memory: no setting can help." in out
    path = tmp_path / "step.pickle"
    path.write_bytes(dumped(Step().run()[0].snapshot()))
    out = " ".join(tune(capsys, path).split())
    assert "The request that failed, beside what was live, needs 60.00 MiB more than the memory" in out


def test_memory_before_the_history_is_said(capsys, tmp_path):
    path = tmp_path / "late.pickle"
    gpu = simulate.Device(1 << 30)
    gpu.free(gpu.allocate(300 * MIB))
    gpu.record_history()
    gpu.allocate(33 * MIB)
    path.write_bytes(dumped(gpu.snapshot()))
    out = " ".join(tune(capsys, path).split())
    assert "300.00 MiB were reserved when the history began, and each replay begins with that" in out
    value = json.loads(tune(capsys, path, "--json"))
    assert value["bounds"][0]["reserved_before"] == 300 * MIB
    assert (value["packing"]["nbytes"], value["packing"]["whole"]) == (33 * MIB, True)


@pytest.mark.parametrize(("columns", "shown"), [(60, False), (80, True)])
def test_narrow_terminals_have_fewer_columns(capsys, monkeypatch, full, columns, shown):
    for name, text in {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, text)
    out = tune(capsys, full)
    assert ("packing" in out.partition("settings,")[2]) is shown
    assert "memory" in out.partition("settings,")[2]


def test_search_and_several_files(capsys, full, tmp_path):
    other = tmp_path / "other.pickle"
    other.write_bytes(dumped(program(2, steps=200)))
    value = json.loads(tune(capsys, full, other, "--search", "9", "--json"))
    assert len(value["trials"]) < 9
    assert [len(trial["outcomes"]) for trial in value["trials"]] == [2] * len(value["trials"])
    assert "2 histories: " in tune(capsys, full, other)


def test_recorded_settings_can_be_the_best(capsys, tmp_path):
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.allocate(20 * MIB)
    path = tmp_path / "one.pickle"
    path.write_bytes(dumped(gpu.snapshot()))
    assert tune(capsys, path, "--settings=roundup_power2_divisions:4").endswith(
        "None of these settings is better than the recorded ones.\n"
    )


def test_settings_do_not_help_if_memory_runs_out_as_often(capsys, full):
    """Some reserve less than the recorded ones, which is of no use."""
    lines = tune(capsys, full, "--capacity=50MiB", "--grid", "expandable_segments=True").splitlines()
    assert lines[-1] == "None of these settings helps: with each of them, memory runs out as with the recorded ones."


def test_settings_with_fewer_failures_are_said_to_fail(capsys, tmp_path):
    path = tmp_path / "twice.pickle"
    path.write_bytes(dumped(fragmented(60, 100).snapshot()))
    out = tune(capsys, path, "--settings", "expandable_segments:True")
    assert "With the best of them, 1 instead of 2 requests run out of memory:\n    PYTORCH_ALLOC_CONF=exp" in out


def test_defaults_are_named_without_an_empty_setting(capsys, tmp_path):
    path = tmp_path / "rounded.pickle"
    gpu = simulate.Device(1 << 30, "roundup_power2_divisions:1")
    gpu.apply_settings("roundup_power2_divisions:2")
    gpu.record_history()
    gpu.allocate(33 * MIB)
    path.write_bytes(dumped(gpu.snapshot()))
    out = " ".join(tune(capsys, path).split())
    assert "can reserve less than 34.00 MiB: 33.00 MiB were live at once" in out
    assert out.endswith("these are the defaults, so remove the settings of the program.")


def test_replay_that_is_not_exact_is_said(capsys, tmp_path):
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.free(gpu.allocate(40 * MIB))
    state = gpu.snapshot()
    for table in (*state["device_traces"], state["segments"]):
        for row in table:
            for key in ("size", "total_size"):
                if key in row and row.get("action", "segment_alloc") == "segment_alloc":
                    row[key] += 20 * MIB
    for row in state["segments"]:
        for block in row["blocks"]:
            block["size"] += 20 * MIB
    path = tmp_path / "other.pickle"
    path.write_bytes(dumped(state))
    out = " ".join(tune(capsys, path).split())
    assert "The replay with the recorded settings is 20.00 MiB off the recorded peak of reserved memory." in out
    assert out.endswith("None of these settings is better than the recorded ones.")
    assert json.loads(tune(capsys, path, "--json"))["error"] == 20 * MIB


@pytest.mark.slow
def test_processes_are_started(capsys, full):
    assert tune(capsys, full, "--jobs", "2") == tune(capsys, full, "--jobs", "1")


@pytest.fixture
def scheduler():
    """The address of a Dask scheduler with two workers, each a process."""
    distributed = pytest.importorskip("distributed", reason="the extra `tune` is not installed")
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, host="tcp://127.0.0.1", timeout=60, **options) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dask and Tornado
def test_workers_of_a_scheduler_give_the_same_results(capsys, full, scheduler):
    from distributed import Client

    from forebay.snapshot import load
    from forebay.snapshot.replay.tuning import search
    from forebay.snapshot.replay.tuning import tune as tune_histories

    assert tune(capsys, full, "--scheduler", scheduler) == tune(capsys, full, "--jobs", "1")
    with Client(scheduler, timeout=30) as client, client.get_executor() as executor:
        snapshots = load(full)
        assert len(client.scheduler_info()["workers"]) == 2
        assert tune_histories(snapshots, executor=executor) == tune_histories(snapshots)
        assert search(snapshots, executor=executor).best == search(snapshots).best


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "speed"], "'speed' is not KEY=V1,V2"),
        (["--grid", "speed=3"], "Unrecognized key 'speed'"),
        (["--settings", "max_split_size_mb:1"], "max_split_size_mb too small, must be >= 20"),
        (["--search", "0"], "'0' is not a positive integer"),
        (["--search", "3", "--settings", "x:1"], "--search tries settings of its own"),
        (["--scheduler", "nonsense://"], "cannot connect to the scheduler 'nonsense://': "),
        (["--scheduler", "host"], "cannot connect to the scheduler 'host': missing port number"),
        (["--jobs", "many"], "'many' is not a positive integer"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(capsys, full, arguments, words):
    try:
        status = main(["tune", str(full), *arguments])
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_missing_dask_and_missing_history_are_reported(capsys, monkeypatch, full, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["tune", str(full), "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "--scheduler needs the package distributed: pip install 'forebay[tune]'" in capsys.readouterr().err
    path = tmp_path / "empty.pickle"
    path.write_bytes(dumped(simulate.Device(1 << 30).snapshot()))
    assert main(["tune", str(path)]) == 2
    assert "the files contain no history to replay" in capsys.readouterr().err


def test_address_that_is_none_starts_no_client(full, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra tune is not installed")
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("its destructor would wait for 20 s"))
    assert main(["tune", str(full), "--scheduler", "host"]) == 2
