"""``stratalog doctor``: test a store or a log directory, and suggest changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from stratalog.cli.doctor.diagnosis import Diagnosis, Outcome
from stratalog.cli.doctor.directory_checks import DirectoryChecks
from stratalog.cli.doctor.store_checks import StoreChecks
from stratalog.cli.options import TierPlace, check_directory, json_option
from stratalog.cli.output import Output
from stratalog.cli.parameters import NamedPath
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import is_tier, open_host, open_tier_store
from stratalog.spi.commands import config_option, tier_option


@click.command()
@click.argument("place", metavar="PATH|URI", type=NamedPath())
@config_option
@tier_option
@json_option
def doctor(output: Output, place: str, *, config: str | None, tier_options: Mapping[str, object]) -> int:
    """Test the object store at URI or the log directory at PATH, and suggest changes.

    Checks of a store: list, create, conditional create, ranged read, delete, clock, latency. The command writes objects
    below `stratalog-probe/`, and deletes them at the end. Checks of a directory: owner, lock, last stop, free space,
    file descriptors, duration of an fsync. The command writes a small file, and deletes it at the end.

    The exit code is 0 if no check failed, 1 if a check failed, and 2 if the checks could not run.
    """
    settings = TierPlace(place, config, tier_options).settings()
    with open_host(settings) as host:
        checks = _store(host, place, tier_options) if is_tier(host, place) else _directory(host, Path(place))
        rows = list[tuple[str, str, str, str]]()
        for name, check in checks:
            output.note(f"{name}: {check.outcome}")
            rows.append((name, str(check.outcome), check.text, check.change))
    output.table(place, ("check", "outcome", "found", "change"), rows)
    return 1 if any(outcome == Outcome.WRONG for _, outcome, _, _ in rows) else 0


def _store(host: ComponentHost, uri: str, options: Mapping[str, object]) -> Iterator[tuple[str, Diagnosis]]:
    store = open_tier_store(host, uri, options, read_only=False)
    with contextlib.closing(store), contextlib.closing(StoreChecks(store, host.env)) as checks:
        yield from checks.run()


def _directory(host: ComponentHost, path: Path) -> Iterator[tuple[str, Diagnosis]]:
    check_directory(path)
    with host.segment_store(str(path), read_only=True) as store:
        yield from DirectoryChecks(store, path, host.env).run()
