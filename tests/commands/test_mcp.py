"""forebay mcp: a real client of the protocol asks the server, which reads files of its folder and nothing else."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

import forebay
from forebay import memory
from forebay.commands.mcp_server import MOST_ITEMS, _cut
from forebay.snapshot.formats import native

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two snapshots, one with an error, a broken file and a link to another folder."""
    served = tmp_path / "served"
    served.mkdir()
    with forebay.emulate("cuda", count=1, memory=64 * MIB):
        memory.record_history(1000, device="cuda:0")
        held = [forebay.empty(8 * MIB, dtype="uint8", device="cuda:0")]
        native.write(memory.snapshot("cuda:0"), served / "first.forebay")
        held += [forebay.empty(8 * MIB, dtype="uint8", device="cuda:0") for _ in range(5)]
        with pytest.raises(forebay.OutOfMemory):
            forebay.empty(32 * MIB, dtype="uint8", device="cuda:0")
        native.write(memory.snapshot("cuda:0"), served / "-second.forebay")
    (served / "broken.pickle").write_bytes(b"\x80\x04nonsense")
    outside = tmp_path / "outside.forebay"
    outside.write_bytes((served / "first.forebay").read_bytes())
    (served / "link.forebay").symlink_to(outside)
    return served


@asynccontextmanager
async def connected(folder: Path, *options: str) -> AsyncIterator[Client]:
    arguments = ["-m", "forebay", "mcp", *options, str(folder)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env={**os.environ})
    with anyio.fail_after(100):
        async with Client(stdio_client(server)) as client:
            yield client


def test_tools_answer_what_the_commands_print(folder):
    async def ask() -> dict[str, dict]:
        questions = {
            "open": {"file": "first.forebay"},
            "sites": {"file": "-second.forebay", "device": "cuda:0"},
            "timeline": {"file": "-second.forebay", "points": 3},
            "explain": {"file": "-second.forebay"},
            "tune": {"files": ["first.forebay", "-second.forebay"]},
            "diff": {"before": "first.forebay", "after": "-second.forebay"},
        }
        async with connected(folder) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name: tool.annotations.read_only_hint for tool in tools} == dict.fromkeys(questions, True)
            return {name: (await client.call_tool(name, given)).structured_content for name, given in questions.items()}

    found = anyio.run(ask)
    assert found["open"]["answer"][0]["peak_bytes"] == 8 * MIB
    (sites,) = found["sites"]["answer"]
    assert sites["sites"][0]["live_bytes"] + sites["sites"][1]["live_bytes"] == sites["peak_bytes"]
    (timeline,) = found["timeline"]["answer"]
    assert len(timeline["timeline"]) == 3
    assert timeline["out_of_memory"][0]["requested_bytes"] == 32 * MIB
    assert max(point["allocated_bytes"] for point in timeline["timeline"]) == timeline["peak_bytes"]
    for name in ("explain", "tune", "diff"):
        command = shlex.split(found[name]["command"])
        assert command[0] == "forebay"
        again = subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, capture_output=True, check=True, timeout=100
        ).stdout
        left_out: dict[str, int] = {}
        assert _cut(json.loads(again), "answer", left_out) == found[name]["answer"]
        assert left_out == found[name]["left_out"]
    assert all(answer["units"]["sizes"] == "bytes" for answer in found.values())


WRONG_QUESTIONS = [
    ("open", {"file": "../outside.forebay"}, "'../outside.forebay' is not a file below the server's folder"),
    ("open", {"file": "/etc/passwd"}, "'/etc/passwd' is not a file below"),
    ("open", {"file": "link.forebay"}, "'link.forebay' is not a file below"),
    ("open", {"file": "no\0name"}, "is not a file below"),
    ("open", {"file": "."}, "is not a file below"),
    ("explain", {"file": "broken.pickle"}, "broken.pickle"),
    ("explain", {"file": "first.forebay", "device": "cuda:9"}, "has no device 'cuda:9'; its devices: cuda:0"),
    ("explain", {"file": "first.forebay", "device": "--html=x"}, "has no device '--html=x'"),
    ("explain", {"file": "first.forebay", "device": "cuda\0"}, "the command cannot be started: embedded null byte"),
    ("explain", {"file": 10_000 * "x"}, "x…x"),
    ("sites", {"file": "first.forebay", "moment": 99}, "has no moment 99; choose from 0 to"),
    ("fit", {"program": "first.forebay"}, "Unknown tool: fit"),
]


def test_wrong_question_is_answered_with_one_line_and_the_server_goes_on(folder):
    async def ask() -> list[str]:
        async with connected(folder) as client:
            answers = [await client.call_tool(tool, given) for tool, given, _ in WRONG_QUESTIONS]
            assert all(answer.is_error for answer in answers)
            assert not (await client.call_tool("open", {"file": "first.forebay"})).is_error
            return [answer.content[0].text for answer in answers]

    for found, (_, _, text) in zip(anyio.run(ask), WRONG_QUESTIONS, strict=True):
        assert text in found
        assert "\n" not in found
    assert sorted(path.name for path in folder.iterdir()) == [
        "-second.forebay", "broken.pickle", "first.forebay", "link.forebay",
    ]  # fmt: skip


def test_fit_is_a_tool_only_where_programs_may_run(folder):
    (folder / "train.py").write_text("print()\n")

    async def ask() -> tuple[bool, str]:
        async with connected(folder, "--programs") as client:
            (fit,) = (tool for tool in (await client.list_tools()).tools if tool.name == "fit")
            answer = await client.call_tool("fit", {"program": "train.py", "cards": "t4"})
            return fit.annotations.read_only_hint, answer.content[0].text

    read_only, text = anyio.run(ask)
    assert not read_only
    assert "PyTorch" in text  # which this environment does not have


def test_long_lists_are_cut_and_counted():
    left_out: dict[str, int] = {}
    assert _cut({"a": [[*range(60)], 2]}, "answer", left_out) == {"a": [[*range(MOST_ITEMS)], 2]}
    assert left_out == {"answer.a[0]": 10}


def test_folder_that_does_not_exist_is_an_error(tmp_path, capsys):
    from forebay.commands.cli import main

    assert main(["mcp", str(tmp_path / "absent")]) == 2
    assert "is not a folder" in capsys.readouterr().err
