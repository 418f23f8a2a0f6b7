"""The `forebay` command: reads the command line, runs the command, says what went wrong in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import forebay
from forebay.commands import Failure, doctor, info, replay, run, showing

COMMANDS = {
    "run": (run, "run a Python program on the host device, and show where its memory went"),
    "replay": (replay, "replay a recorded history: is it the same, and what would other settings have made of it?"),
    "info": (info, "list the devices and the versions, and say why a kind of device is missing"),
    "doctor": (doctor, "check the installation, and say what to do about what is wrong"),
}


class Parser(argparse.ArgumentParser):
    """One that complains in one line: the usage is a --help away."""

    def error(self, message: str) -> NoReturn:
        print(f"forebay: error: {message} ({self.prog} --help says more)", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. An exception that comes out of here is that of the program which `run` ran."""
    try:
        with showing():
            args = make_parser().parse_args(arguments)
        status: int = args.run(args)
    except Failure as failure:
        print(f"forebay: error: {failure}", file=sys.stderr)
        return 2
    return status


def make_parser() -> Parser:
    parser = Parser(prog="forebay", description="An accelerator runtime, and pictures of where the memory went.")
    parser.add_argument("--version", action="store_true", help="show the version and leave")
    parser.set_defaults(run=lambda args: show_itself(parser, args))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (module, what) in COMMANDS.items():
        layout = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(
            name, help=what, description=module.__doc__, allow_abbrev=False, formatter_class=layout
        )
        module.arguments(command)
        command.set_defaults(run=module.run)
    return parser


def show_itself(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    with showing():
        if args.version:
            print(f"forebay {forebay.__version__}")
        else:
            parser.print_help()
    return 0
