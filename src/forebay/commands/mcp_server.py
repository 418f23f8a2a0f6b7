"""Tools of `forebay mcp`. Each one runs a command of forebay in a child process and returns its JSON.

A child process, as a file from others may take all memory or a long time: then the child ends, and the server goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

import forebay
from forebay._base.untrusted import printable, shortened

__all__ = ["make_server"]

MOST_ITEMS = 50  # of a list in an answer: a history of a million entries must fit into the context of a model
MOST_CHARACTERS = 300  # of a name in an error
SECONDS = 300  # limit of one answer
LEAST_STATUS_OF_ERRORS = 2  # of a command: it was used wrongly; 1, 3 and 4 are verdicts of `fit`
UNITS = {
    "sizes": "bytes",
    "times": "nanoseconds since 1970-01-01 UTC; names that end in _ns and are no time are nanoseconds",
    "moments": "number of entries of the history before it; 0 is the beginning",
}
READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
INSTRUCTIONS = """\
forebay reads memory snapshots of GPU programs: PyTorch's torch.cuda.memory._dump_snapshot() and its own. Begin with
`open`; `explain` says why memory ran out or what made the peak. Paths are relative to the server's folder. Each answer
has `units` and the `command` that repeats it in a shell. Lists are cut at 50 items; `left_out` counts the others."""

File = Annotated[str, Field(description="a snapshot: a path relative to the server's folder")]
Device = Annotated[str | None, Field(description="a device such as cuda:1; all that were used by default")]
Moment = Annotated[int | None, Field(ge=0, description="a moment of the history; the peak by default")]
Answer = dict[str, Any]


def make_server(folder: Path, *, programs: bool = False) -> MCPServer[Any]:
    """Return the server for the files below a folder; with `programs`, it has the tool `fit`."""
    server: MCPServer[Any] = MCPServer(
        "forebay", version=forebay.__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    tools = Tools(folder)
    for tool in (tools.open, tools.sites, tools.timeline, tools.explain, tools.tune, tools.diff):
        server.add_tool(tool, annotations=READS)
    if programs:
        server.add_tool(tools.fit, annotations=RUNS)
    return server


class Tools:
    """The tools over one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder.resolve()

    async def open(self, file: File) -> Answer:
        """Return the key figures of a snapshot: its devices, peaks, history and out-of-memory events."""
        found = await self._run("view", "--json", "--rows=1", "--points=1", self._path(file))
        for device in found["answer"]:
            for name in ("moment", "sites", "other_sites", "timeline"):
                del device[name]
        return found

    async def sites(self, file: File, device: Device = None, moment: Moment = None) -> Answer:
        """Return the lines of the program that hold the memory at a moment, most bytes first."""
        chosen = [f"--device={device}"] if device else []
        chosen += [] if moment is None else [f"--moment={moment}"]
        found = await self._run("view", "--json", f"--rows={MOST_ITEMS}", "--points=1", *chosen, self._path(file))
        wanted = ("device", "peak_bytes", "peak_moment", "moment", "sites", "other_sites")
        found["answer"] = [{name: each[name] for name in wanted} for each in found["answer"]]
        return found

    async def timeline(
        self, file: File, device: Device = None, points: Annotated[int, Field(ge=1, le=MOST_ITEMS)] = 40
    ) -> Answer:
        """Return allocated and reserved memory over time: of each part of the history, the moment with the most."""
        chosen = [f"--device={device}"] if device else []
        found = await self._run("view", "--json", "--rows=1", f"--points={points}", *chosen, self._path(file))
        wanted = ("device", "peak_bytes", "peak_moment", "entries", "lost_entries", "out_of_memory", "timeline")
        found["answer"] = [{name: each[name] for name in wanted} for each in found["answer"]]
        return found

    async def explain(
        self,
        file: File,
        device: Device = None,
        replay: Annotated[bool, Field(description="prove by replays which settings help; takes longer")] = True,
    ) -> Answer:
        """Explain why memory ran out, or which allocations made the peak, and which settings would have helped."""
        chosen = [f"--device={device}"] if device else []
        return await self._run("explain", "--json", *chosen, *([] if replay else ["--no-replay"]), self._path(file))

    async def tune(self, files: Annotated[list[File], Field(min_length=1, max_length=MOST_ITEMS)]) -> Answer:
        """Rank allocator settings by replays of the recorded histories."""
        return await self._run("tune", "--json", *map(self._path, files))

    async def diff(self, before: File, after: File) -> Answer:
        """Compare two snapshots: the memory that grew, by line of the program, at the peak and at the end."""
        return await self._run("diff", "--json", self._path(before), self._path(after))

    async def fit(
        self,
        program: Annotated[str, Field(description="a Python file: a path relative to the server's folder")],
        arguments: Annotated[list[str] | None, Field(description="arguments of the program")] = None,
        cards: Annotated[str, Field(description="profiles of cards, such as t4,l4,rtx_4090,a100,h100")] = "t4,a100",
    ) -> Answer:
        """Run a PyTorch program without a GPU on emulated cards, and return whether its memory suffices on each."""
        return await self._run("fit", "--json", f"--cards={cards}", self._path(program), *(arguments or ()))

    def _path(self, name: str) -> str:
        """Return the path of a file below the folder; refuse others, also behind links."""
        try:
            path = (self.folder / name).resolve()
            is_file = path.is_relative_to(self.folder) and path.is_file()
        except (OSError, ValueError, RuntimeError):  # a null character; a circle of links
            is_file = False
        if not is_file:
            raise ToolError(f"{shortened(printable(name), MOST_CHARACTERS)!r} is not a file below the server's folder")
        relative = str(path.relative_to(self.folder))
        return f"./{relative}" if relative.startswith("-") else relative

    async def _run(self, *command: str) -> Answer:
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "forebay", *command, cwd=self.folder, start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except (OSError, ValueError) as error:  # a null character in an argument; too long arguments
            raise ToolError(f"the command cannot be started: {printable(str(error))}") from error
        try:
            out, err = await asyncio.wait_for(child.communicate(), SECONDS)
        except TimeoutError:
            raise ToolError(f"{shlex.join(('forebay', *command))} did not end within {SECONDS} s") from None
        finally:  # the client may also have cancelled the request
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
        try:
            answer = json.loads(out)
        except ValueError:
            answer = None
        if answer is None or child.returncode == LEAST_STATUS_OF_ERRORS:
            text = err.decode(errors="replace").strip().rpartition("\n")[2] or f"status {child.returncode}"
            raise ToolError(printable(text.removeprefix("forebay: error: ")))
        left_out: dict[str, int] = {}
        return {
            "answer": _cut(answer, "answer", left_out),
            "left_out": left_out,
            "units": UNITS,
            "command": shlex.join(("forebay", *command)),
        }


def _cut(value: Any, place: str, left_out: dict[str, int]) -> Any:
    """Return a value whose lists have at most MOST_ITEMS items; count the others by the name of the list."""
    if isinstance(value, dict):
        return {name: _cut(each, f"{place}.{name}", left_out) for name, each in value.items()}
    if isinstance(value, list):
        if len(value) > MOST_ITEMS:
            left_out[place] = len(value) - MOST_ITEMS
        return [_cut(each, f"{place}[{number}]", left_out) for number, each in enumerate(value[:MOST_ITEMS])]
    return value
