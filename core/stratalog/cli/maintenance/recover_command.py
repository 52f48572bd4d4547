"""``stratalog recover``: recover a log directory after an unclean shutdown."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from stratalog.cli.options import NamedDirectories, check_directory, directory_options, json_option
from stratalog.cli.output import Columns, Output
from stratalog.engine.recover_directories import RecoveredLog, plan_recovery, recover_directories

_COLUMNS: Final[Columns[RecoveredLog]] = {
    "topic": lambda log: log.log.topic,
    "partition": lambda log: log.log.partition,
    "recovered_segments": lambda log: log.segments,
    "truncated_bytes": lambda log: log.truncated_bytes,
    "log_start": lambda log: log.log_start,
    "log_end": lambda log: log.log_end,
    "error": lambda log: log.error,
}


@click.command()
@directory_options("[DIR]...", "A log directory, like the argument DIR; can be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the actions of recovery; write nothing.")
@json_option
def recover(output: Output, directories: NamedDirectories, *, dry_run: bool) -> int:
    """Recover the logs in each log directory DIR after a crash.

    The directory is then in the same state as after a clean stop. The command checks every batch of a log from the
    recovery point to the end, truncates the log at the first bad batch, and rebuilds its indexes and producer
    snapshots. A directory that was closed cleanly is only opened and closed. To check its files, use
    `stratalog verify`.

    The exit code is 1 if a log could not be recovered, if its end is damaged after a clean stop, or if a `.log` file is
    missing and its index still exists. All other logs are recovered.
    """
    paths = [Path(path) for path in directories.paths]
    for path in paths:
        check_directory(path)
    with output.bytes_progress("recovering") as progress:
        logs = plan_recovery(paths, progress) if dry_run else recover_directories(paths, progress)
    output.table_of("would be recovered" if dry_run else "recovered", _COLUMNS, logs)
    return 1 if any(log.error for log in logs) else 0
