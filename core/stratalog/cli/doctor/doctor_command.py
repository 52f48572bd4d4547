"""``stratalog doctor``: test a store or a log directory, and suggest changes."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import click

from stratalog.cli.doctor.diagnosis import Checks, Outcome, run_checks
from stratalog.cli.doctor.directory_checks import DirectoryChecks
from stratalog.cli.doctor.store_checks import StoreChecks
from stratalog.cli.options import TierPlace, check_directory, json_option, location_options
from stratalog.cli.output import Output
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import is_tier, open_host, open_tier_store


@click.command()
@location_options
@json_option
def doctor(output: Output, place: TierPlace) -> int:
    """Test the object store at URI or the log directory at PATH, and suggest changes.

    Checks of a store: list, create, conditional create, ranged read, delete, clock, latency. The command writes objects
    below `stratalog-probe/`, and deletes them at the end. Checks of a directory: owner, lock, last stop, free space,
    file descriptors, duration of an fsync. The command writes a small file, and deletes it at the end.

    The exit code is 0 if no check failed, 1 if a check failed, and 2 if the checks could not run.
    """
    rows: list[tuple[str, str, str, str]] = []
    with open_host(place.settings()) as host, ExitStack() as stack:
        for name, diagnosis in run_checks(_checks(host, place, stack)):
            output.note(f"{name}: {diagnosis.outcome}")
            rows.append((name, str(diagnosis.outcome), diagnosis.text, diagnosis.change))
    output.table(place.uri, ("check", "outcome", "found", "change"), rows)
    return 1 if any(outcome == Outcome.WRONG for _, outcome, _, _ in rows) else 0


def _checks(host: ComponentHost, place: TierPlace, stack: ExitStack) -> Checks:
    """Open the store or the directory until the end of ``stack``, and return its checks."""
    if is_tier(host, place.uri):
        store = open_tier_store(host, place.uri, place.tier_options, read_only=False)
        store_checks = StoreChecks(stack.enter_context(closing(store)), host.env)
        return stack.enter_context(closing(store_checks)).checks()
    check_directory(Path(place.uri))
    directory = stack.enter_context(host.segment_store(place.uri, read_only=True))
    return DirectoryChecks(directory, Path(place.uri), host.env).checks()
