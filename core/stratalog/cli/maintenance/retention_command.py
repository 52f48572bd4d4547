"""``stratalog retention``: delete and evict the segments that have expired by the retention settings."""

from __future__ import annotations

from typing import Final

import click

from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Output
from stratalog.engine.engine import Engine
from stratalog.errors import StorageError
from stratalog.model.names import TopicPartition

_COUNTS: Final = ("deleted_segments", "deleted_bytes", "evicted_segments", "evicted_bytes", "log_start", "rolled")


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the segments that would be deleted, and why. Change nothing.")
@place_options
@json_option
def retention(place: LogPlace, output: Output, *, dry_run: bool) -> int:
    """Apply retention by time, size and log start offset, to local disk and to the tier.

    The column ``rolled`` is true if the active segment was too old for local disk. The log has then closed the segment,
    so it can be offloaded.

    The exit code is 1 if a partition could not be opened. Retention was applied to all other partitions.
    """
    with output.bytes_progress("applying retention") as progress, place.engine() as engine:
        open_errors = _open_logs(engine)
        results = engine.apply_retention(dry_run=dry_run, progress=progress)
    rows = [
        (*result.log, *(getattr(result, name) for name in _COUNTS), "; ".join(result.reasons), "") for result in results
    ]
    rows.extend((*name, 0, 0, 0, 0, None, False, "", str(error)) for name, error in open_errors.items())
    columns = ("topic", "partition", *_COUNTS, "reasons", "error")
    output.table("would be deleted" if dry_run else "deleted", columns, rows)
    return 1 if open_errors else 0


def _open_logs(engine: Engine) -> dict[TopicPartition, StorageError]:
    errors = {}
    for name in engine.partitions():
        try:
            engine.log(*name)
        except StorageError as error:
            errors[name] = error
    return errors
