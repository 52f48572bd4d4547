"""``stratalog run``: an engine with its background duties and services, until a signal stops it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import click

from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Output

_STATUS = ("duty", "runs", "failures", "error")


@click.command("run")
@place_options
@json_option
def run_engine(place: LogPlace, output: Output) -> int:
    """Keep log directories in order: sync, roll, retention, compaction, offload; and run the services of the settings.

    Goes on until Ctrl-C or SIGTERM, then stops as an engine does: the next start has nothing to recover. One row a duty
    tells how it fared; the exit code is 1 if the last run of one failed.
    """
    with _told_to_stop() as stop, place.engine() as engine:
        engine.start()
        output.note(f"{len(engine.partitions())} logs are open; Ctrl-C stops")
        stop.wait()
        output.note("stopping")
        status = engine.duties()
    output.table(
        "duties",
        _STATUS,
        [(duty.name, duty.runs, duty.failures, duty.error if duty.failing else "") for duty in status],
    )
    return 1 if any(duty.failing for duty in status) else 0


@contextlib.contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; a second signal has its usual effect.

    A clean shutdown may take long, and a second signal ends the process without it.
    """
    stop = threading.Event()
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def obey(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, before[number])
        stop.set()

    for wanted in (signal.SIGINT, signal.SIGTERM):
        before[wanted] = signal.signal(wanted, obey)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
