"""``stratalog cleaner``: compact the logs whose topics have cleanup.policy=compact."""

from __future__ import annotations

import click

from stratalog.cleaning.compact.compaction_round import CompactionResult
from stratalog.cleaning.plan.compaction_plan import CompactionPlan
from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Output
from stratalog.engine.engine import Engine
from stratalog.errors import StorageError

_COLUMNS = (
    "topic",
    "partition",
    "part",
    "dirty_start",
    "end",
    "dirty_ratio",
    "bytes_read",
    "bytes_written",
    "bytes_downloaded",
    "bytes_uploaded",
    "records_read",
    "records_kept",
    "map_load",
    "elapsed_ms",
    "reason",
    "error",
)
_PLANNED = (
    "topic",
    "partition",
    "part",
    "start",
    "dirty_start",
    "end",
    "dirty_ratio",
    "bytes_to_download",
    "bytes_to_upload",
    "bytes_freed",
    "reason",
    "error",
)


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Show which logs would be compacted, which would not, and why; change nothing."
)
@place_options
@json_option
def cleaner(place: LogPlace, output: Output, *, dry_run: bool) -> int:
    """Compact the logs of topics with cleanup.policy=compact, the log with the largest dirty ratio first.

    Prints one row for each round. The exit code is 1 if a log could not be compacted; no record of it is lost, and the
    other logs were compacted.
    """
    with output.bytes_progress("compacting") as progress, place.engine() as engine:
        if dry_run:
            rows = [_planned(engine, plan) for plan in engine.plan_cleaner()]
            output.table("would be compacted", _PLANNED, rows)
            return 1 if any(row[-1] for row in rows) else 0
        results = engine.run_cleaner(progress=progress)
    output.table("compacted", _COLUMNS, [_done(result) for result in results])
    return 1 if any(result.error is not None for result in results) else 0


def _planned(engine: Engine, plan: CompactionPlan) -> tuple[object, ...]:
    found, error, reason = plan.rewrite, "" if plan.error is None else str(plan.error), plan.reason
    freed: int | None = None
    uploaded: int | None = None
    try:
        seen = engine.preview_cleaner(plan)
        if seen is not None:
            reason = seen.reason
            freed = sum(one.bytes_before - one.bytes_after for one in seen.segments)
            uploaded = 0 if plan.tier is None else sum(one.bytes_after for one in seen.segments)
    except StorageError as wrong:  # the round of this log would fail with it; other logs continue
        error = str(wrong)
    bounds = (None,) * 4 if found is None else (found.start, found.dirty_start, found.end, round(found.dirty_ratio, 4))
    downloaded = None if found is None else plan.download_bytes
    return (*plan.log.name, plan.part, *bounds, downloaded, uploaded, freed, reason, error)


def _done(result: CompactionResult) -> tuple[object, ...]:
    stats = result.stats
    return (
        *result.log,
        result.part,
        result.dirty_start,
        result.end,
        round(result.dirty_ratio, 4),
        stats.bytes_observed + stats.bytes_read,
        stats.bytes_written,
        result.traffic.downloaded_bytes,
        result.traffic.uploaded_bytes,
        stats.records_read,
        stats.records_kept,
        round(result.map_load, 4),
        result.elapsed_ms,
        result.stopped or result.reason,
        "" if result.error is None else str(result.error),
    )
