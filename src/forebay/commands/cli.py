"""The `forebay` command: parses the command line, runs the command, and prints errors in one line."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

import forebay
from forebay._base.suggestions import did_you_mean
from forebay._base.untrusted import printable
from forebay.commands import CommandError, ProgramError, command_output
from forebay.commands.programs import mark_program

# Modules of this package. Each is imported when it runs, as the time of all of them is half that of a small program.
COMMANDS = {
    "run": "run a Python program on the CPU device and report its memory use",
    "fit": "find the cards on which a PyTorch program fits",
    "demo": "show what forebay does, on data that it brings along",
    "report": "write memory snapshots as one page for the browser",
    "viewer": "write a page for the browser into which snapshots are dropped",
    "explain": "explain why memory ran out, or which allocations made the peak",
    "view": "show a snapshot in the terminal: memory over time, sites and stacks",
    "tune": "find the allocator settings that suit recorded histories",
    "diff": "compare two snapshots: the memory that grew, by site",
    "ranks": "compare the snapshots of the ranks of a distributed program",
    "convert": "convert a snapshot to another format",
    "replay": "replay a recorded memory history to verify it or to try other settings",
    "top": "show the devices and the memory of running programs, live",
    "exporter": "serve the figures of running programs to Prometheus",
    "mcp": "answer the questions of agents about snapshots (Model Context Protocol)",
    "info": "list the devices, the versions, and the reasons for missing kinds of devices",
    "doctor": "check the installation and suggest fixes",
}


class Paragraphs(argparse.HelpFormatter):
    """A help formatter that keeps the paragraphs of a description and wraps each to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(part, width, indent) for part in text.strip().split("\n\n"))


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line, with the help of the command that they are about."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here: argparse would report those of a command as errors of `forebay`."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            hint = did_you_mean(unknown[0].partition("=")[0], options)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        if (wrong := re.search(r"argument COMMAND: invalid choice: '(.*?)'", message)) is not None:
            message = f"{wrong[1]!r} is not a command; choose from {', '.join(COMMANDS)}"
            message += did_you_mean(wrong[1], COMMANDS)
        print(f"forebay: error: {printable(message)} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Exceptions of the program that `run` executes propagate."""
    if (recorded := sys.modules.get("forebay.commands.run_child")) is not None:
        recorded.leave()  # a recorded program has started this command
    try:
        with command_output():
            arguments = sys.argv[1:] if arguments is None else [*arguments]
            given = [*arguments]
            if arguments[:1] in (["run"], ["fit"]):
                arguments[1:] = mark_program(_module(arguments[0]), arguments[1:])
            chosen = arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else [*COMMANDS]
            args = make_parser(chosen).parse_args(arguments)
            args.arguments = given
        status: int = args.run(args)
    except CommandError as error:
        print(f"forebay: error: {printable(str(error))}", file=sys.stderr)
        return 2
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    return status


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"forebay.commands.{name}")


def make_parser(names: Iterable[str] = COMMANDS) -> Parser:
    """Return the parser of some commands. With one, its usage still has the place of the others."""
    parser = Parser(prog="forebay", description="An accelerator runtime with memory reports.")
    parser.add_argument("-V", "--version", action="store_true", help="show the version and exit")
    parser.add_argument(
        "--print-completion", choices=("bash", "zsh", "tcsh"), metavar="SHELL",
        help="print the completion script of a shell (bash, zsh or tcsh) and exit",
    )  # fmt: skip
    parser.set_defaults(run=lambda args: show_version_or_help(parser, args))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in names:
        module = _module(name)
        command = commands.add_parser(
            name, help=COMMANDS[name], description=module.__doc__, allow_abbrev=False, formatter_class=Paragraphs
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that completes commands, options and files of `forebay` in a shell."""
    try:
        import shtab
    except ImportError as error:
        raise CommandError("--print-completion needs the package shtab: pip install shtab") from error
    for command in parser._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]  # noqa: SLF001 - the only list
        for action in command._actions:  # noqa: SLF001 - as above
            if action.dest in ("program", "snapshot", "snapshots", "other_snapshot", "html", "page", "trace"):
                action.complete = shtab.FILE
            elif action.dest in ("output", "directory"):
                action.complete = shtab.DIRECTORY
    return str(shtab.complete(parser, shell))


def show_version_or_help(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    with command_output():
        if args.version:
            print(f"forebay {forebay.__version__}")
        elif args.print_completion:
            print(completion(parser, args.print_completion))
        else:
            parser.print_help()
    return 0
