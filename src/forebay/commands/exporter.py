"""Serve the memory figures of devices to Prometheus.

Each scrape reads all programs of the user that were started by forebay run, and the GPUs of the machine. By default
only this machine can connect; all its users can then read the names and arguments of the programs. With --once, the
metrics are printed instead, as the textfile collector of the node exporter reads them.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay.commands import CommandError, command_output

if TYPE_CHECKING:
    from forebay.observe.monitor.metrics import Sample

PORT = 9847
_MAX_PORT = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=_port, default=PORT, metavar="PORT", help=f"port; 0: any free one (default: {PORT})"
    )
    parser.add_argument("--once", action="store_true", help="print the metrics and exit")
    parser.add_argument(
        "--dcgm", action="store_true",
        help="add the sensors of the machine's GPUs under the names of NVIDIA's DCGM exporter, for its dashboards",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server

        from forebay.observe.monitor.dcgm import DcgmCollector
        from forebay.observe.monitor.prometheus import DeviceCollector
    except ImportError as error:
        raise CommandError(f"forebay exporter cannot start: {error} (pip install 'forebay[exporter]')") from error
    registry = CollectorRegistry()
    registry.register(DeviceCollector(_read if args.once else _read_or_report))
    if args.dcgm:
        registry.register(DcgmCollector())
    with command_output():
        if args.once:
            print(generate_latest(registry).decode(), end="")
            return 0
        try:
            server, thread = start_http_server(args.port, args.address, registry)
        except OSError as error:
            raise CommandError(f"cannot listen on {args.address}:{args.port}: {error.strerror}") from error
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        address = f"[{args.address}]" if ":" in args.address else args.address
        print(f"metrics at http://{address}:{server.server_port}/metrics (Ctrl-C ends the exporter)", flush=True)
        try:
            stopped.wait()
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
    return 0


def _read() -> Iterator[Sample]:
    """Return the samples. Raises CommandError if the directory of the sockets cannot be used."""
    from forebay.observe.monitor.machine import read_machine
    from forebay.observe.monitor.metrics import samples

    try:
        found = read_machine()
    except OSError as error:
        raise CommandError(f"cannot find running programs: {error}") from error
    return samples(found.processes, found.gpus)


def _read_or_report() -> Iterator[Sample]:
    """Return the samples; none, and an error on standard error, if they cannot be read now."""
    try:
        return _read()
    except CommandError as error:
        print(f"forebay: error: {error}", file=sys.stderr)
        return iter(())


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= _MAX_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {_MAX_PORT}")
